#!/usr/bin/env python3
"""scripts/gpu-check.sh on the emulated GPU: every stage runs, the micro-benchmark has every method that has a CUDA version, and the report has
a row of everything; gpu_report.py keeps what a killed benchmark had, and reads Nsight Compute's, PyTorch's and the sanitizers' words.

Usage: check_report.py BUILD
"""
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
ELEMENTS = 20000
NCU = """# fp16
==PROF== Connected
"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","void gradtool::cuda::encode_kernel<1>(int)","gpu__time_duration.sum","ns","39,500"
"0","void gradtool::cuda::encode_kernel<1>(int)","dram__bytes_read.sum","byte","104900000"
"1","void gradtool::cuda::encode_kernel<1>(int)","gpu__time_duration.sum","ns","1000"
# exponent
"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","gradtool::cuda::encode_kernel(int)","gpu__time_duration.sum","ns","990000"
"""


def report(folder, *arguments):
    subprocess.run([sys.executable, str(ROOT / "scripts/gpu_report.py"), "--out", folder, "--log", folder, "--card", "A card", "--seconds", "1",
                    *arguments, "--", str(ELEMENTS), "7"], check=True)
    return (folder / "README.md").read_text()


def row(text, name):
    return next([cell.strip() for cell in line.split("|")] for line in text.splitlines() if line.startswith(f"| {name} |"))


def main():
    build = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        done = subprocess.run([ROOT / "scripts/gpu-check.sh", "--emulated", "--build", build, "--out", folder, "--stages", "probe,tests,bench,ncu,sanitize",
                               "--minutes", "30"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout
        assert "no check failed" in done.stdout and "no time for" not in done.stdout, done.stdout
        whole = (folder / "README.md").read_text()
        for line in ("* gpu_codecs: ", "* gpu_methods: ", "* gpu_reducers: ", "* comm_gpu: ", "* bench-resnet50: ", "* bench-gpt2: "):
            assert "not run" not in next(said for said in whole.splitlines() if said.startswith(line)), whole
        assert sorted(path.name for path in folder.iterdir()) == ["README.md", "bench-gpt2.json", "bench-resnet50.json", "logs.tar.xz",
                                                                  f"microbench-{ELEMENTS}.json", "microbench-resnet50.json"]
        record = folder / f"microbench-{ELEMENTS}.json"
        runs = {}
        for run in json.loads(record.read_text())["benchmarks"]:
            assert not run.get("error_occurred"), run
            _, codec, form, *_ = run["name"].split("/")
            runs.setdefault(codec.split(":")[0], {})[form] = run
        listed = json.loads(subprocess.run([build / "bin/gradtool", "list", "codecs", "--json", "-"], check=True, stdout=subprocess.PIPE).stdout)
        for codec in listed:
            if "cuda" not in codec["spaces"] or codec["name"] == "noop":
                continue
            both = runs.get(codec["name"], {})
            assert {"encode", "decode"} <= both.keys() or "step" in both, f"{codec['name']}: {sorted(both)}"
            assert f"\n| {codec['name']}" in whole, codec["name"]
            if "encode" in both:
                assert 0.0 < both["encode"]["of_copy"], codec["name"]
                assert ("of_copy" in both["decode"]) == (not codec["memory_floor"]["scatters"]), codec["name"]
        assert runs["topk"]["encode"]["payload_ratio"] > 50.0
        assert runs["dgc"]["encode"]["payload_ratio"] > 250.0, "not the payload of a step with a memory"
        assert runs["iwp"]["step"]["of_copy"] > 0.0
        assert runs["copy"]["again"]["raw"] > 0.0

        topk = runs["topk"]["encode"]["real_time"]
        anchors = {"elements": ELEMENTS, "k": 200, **{key: topk for key in ("copy", "cold_copy", "fill", "read", "half", "sort")}, "topk": 3.0 * topk}
        (folder / "torch.json").write_text(json.dumps({"torch": "2.0", "microseconds": [anchors]}))
        (folder / "gpu_codecs.0.log").write_text("[  PASSED  ] 7 tests.\n")
        (folder / "gpu_codecs.1.log").write_text("[  PASSED  ] 4 tests.\n[  FAILED  ] 1 test, listed below:\n")
        (folder / "memcheck.0.log").write_text("[  PASSED  ] 2 tests.\n========= ERROR SUMMARY: 3 errors\n")
        (folder / "ncu.csv").write_text(NCU)
        whole_record = record.read_text()
        first = whole_record.index("{", whole_record.index('"benchmarks"'))
        record.write_text(whole_record[:first] + json.dumps({"name": "cuda/cub/topk/iterations:1/manual_time", "real_time": topk / 2}) + "," + '{"name": "cuda/zfp/encode/iterations:1/manual_time", "error_occurred": true, "error_message": "a fault"},' +
                          whole_record[first:])
        text = report(folder, "--failed", "gpu_codecs.1", "--unfinished", "memcheck.0")
        record.write_text(whole_record)
        for line in ("* not timed: zfp/encode: a fault", "Cut short or not begun for lack of time: memcheck.0.", "# A card", "**Failed: gpu_codecs.1**", "* gpu_codecs: 11 passed, 1 failed", "* memcheck: cut short for lack of time; 2 passed, 3 errors",
                     "torch.topk takes 3.0 times topk's encode (to reach: 4)", "### 0 MB: not measured", "powersgd:rank=4, a step",
                     "| topk, encode |"):
            assert line in text, f"'{line}' is not in\n{text}"
        assert row(text, "topk")[4] != "" and row(text, "topk")[7] == "", text
        assert row(text, "iwp")[-2] == "0.5", text
        assert row(text, "fp16 | `encode_kernel<1>`")[3:5] == ["39.5", "104.9"] and row(text, "exponent | `encode_kernel`")[3] == "990.0", text

        # Killed in the middle of the 30th row, after its context, and before it.
        for end, kept in ((record.read_text().index('"of_copy"', 20000), True), (record.read_text().index('"benchmarks"') + 20, False), (100, False)):
            text = record.read_text()
            record.write_text(text[:end])
            cut = report(folder)
            record.write_text(text)
            assert ("\n| bf16 |" in cut) == kept and "\n| vgc |" not in cut, cut

        # Killed by the system where its file may not grow any more: what it had timed until then is read.
        record.write_text("")
        killed = subprocess.run([build / "bin/gradtool_microbench", "--device=cuda", f"--elements={ELEMENTS}", f"--benchmark_out={record}",
                                 "--benchmark_out_format=json"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000)))
        assert killed.returncode == -signal.SIGXFSZ, killed
        assert "\n| adacomp |" in report(folder), "what was timed is lost"


if __name__ == "__main__":
    main()
