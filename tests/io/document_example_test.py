"""document_example_test.py GRADTOOL DOCUMENT: the program printed in the document writes a conforming file."""

import json
import re
import subprocess
import sys
import tempfile

gradtool, document = sys.argv[1:3]
blocks = re.findall(r"^```python\n(.*?)^```$", open(document).read(), flags=re.M | re.S)
assert len(blocks) == 1, f"expected one Python program in the document, found {len(blocks)}"
with tempfile.TemporaryDirectory() as folder:
    subprocess.run([sys.executable, "-c", blocks[0]], cwd=folder, check=True)
    validated = subprocess.run([gradtool, "validate", "--strict", "hook.h5"], cwd=folder, capture_output=True, text=True)
    assert validated.returncode == 0, validated.stdout + validated.stderr
    info = json.loads(subprocess.run([gradtool, "info", "--json", "-", "hook.h5"], cwd=folder, capture_output=True,
                                     check=True).stdout)
found = {key: info[key] for key in ("steps", "workers", "tensors", "elements", "complete", "non_finite")}
expected = {"steps": 3, "workers": 2, "tensors": 2, "elements": 210, "complete": True, "non_finite": 0}
assert found == expected, found
assert [t["shape"] for t in info["tensor_list"]] == [[10, 20], [10]]
assert [s["iteration"] for s in info["step_list"]] == [0, 100, 200]
print("the document's program writes a conforming file")
