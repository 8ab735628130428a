"""Writes the chart libraries (Vega, Vega-Lite, vega-embed and what they need) as one script.

Usage: write_bundle.py OUT        with a Python that has vl_convert; run by the build
"""
import pathlib
import sys

import vl_convert

VEGA_LITE = "6.4"  # what lib/page/charts is written for

versions = f"Vega {vl_convert.get_vega_version()}, Vega-Lite {VEGA_LITE}, Vega-Embed {vl_convert.get_vega_embed_version()}"
bundle = vl_convert.javascript_bundle(vl_version=VEGA_LITE)
assert "</script" not in bundle.lower() and "<!--" not in bundle, "the libraries would end the script element that they stand in"
notice = f"""/* {versions} and the libraries that they are made of (D3 and others).
 * Vega, Vega-Lite, Vega-Embed: Copyright (c) University of Washington Interactive Data Lab and contributors; BSD 3-Clause licence.
 * D3: Copyright Mike Bostock; ISC licence. The texts of the licences are at https://github.com/vega and https://github.com/d3. */
"""
pathlib.Path(sys.argv[1]).write_text(notice + bundle + "\n")
