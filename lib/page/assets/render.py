"""Draws chart specifications: FORMAT FOLDER THEME NAME..., each FOLDER/NAME.vl.json becomes FOLDER/NAME.FORMAT."""
import json
import pathlib
import sys

try:
    import vl_convert
except ImportError:
    sys.exit(77)

form, folder, theme, names = sys.argv[1], pathlib.Path(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4:]
for name in names:
    spec = json.loads((folder / f"{name}.vl.json").read_text())
    spec["config"] = theme
    target = folder / f"{name}.{form}"
    if form == "svg":
        target.write_text(vl_convert.vegalite_to_svg(spec, vl_version="6.4"))
    else:
        target.write_bytes(vl_convert.vegalite_to_png(spec, vl_version="6.4", scale=2))
