"""The page of `gradtool report` in a real browser without a network: no console message, no request, no empty chart, in light and
dark, on a telephone and in print. With --keep FOLDER the screenshots stay there, to be looked at.

Usage: check_browser.py GRADTOOL SOURCE_DIR [--keep FOLDER]
"""
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import browser
import sample_records

GRADTOOL, ROOT = sys.argv[1], pathlib.Path(sys.argv[2])
KEEP = pathlib.Path(sys.argv[4]) if len(sys.argv) > 4 and sys.argv[3] == "--keep" else None
SAMPLE = ROOT / "datasets/lenet5-fashion-mnist.h5"
# Drawing all of a page is most of what this test takes, and half its size shows an empty chart as well.
SCALE = 1 if KEEP else 0.5


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


if browser.find() is None:
    skip("no Chromium here (Debian: chromium)")
try:
    from PIL import Image, ImageStat
except ImportError:
    skip("no Pillow here, which reads the screenshots (Debian: python3-pil)")
probe = subprocess.run([GRADTOOL, "report", str(ROOT / "absent.json")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
if probe.returncode == 77:
    skip(probe.stderr.strip())


def pixels(png):
    return Image.open(io.BytesIO(png)).convert("RGB")


def medians(picture):
    """Returns the medians of red, green and blue, from 0 to 1."""
    return [median / 255 for median in ImageStat.Stat(picture).median]


def strips(boxes, most):
    """Groups of charts that one picture can show, from top to bottom: a long page on a narrow screen is higher than a picture may be, and
    a picture of each chart would draw the whole page each time."""
    groups = []
    for box in sorted(boxes, key=lambda box: box["y"]):
        if not groups or box["y"] + box["height"] - groups[-1][0]["y"] > most:
            groups.append([])
        groups[-1].append(box)
    return groups


def check_charts(page, what):
    """Each chart has a good many pixels that are not its background, of more than two colours. Returns a picture of the page's begin."""
    shot = page.screenshot(scale=SCALE)
    picture = pixels(shot)
    if KEEP:
        KEEP.mkdir(parents=True, exist_ok=True)
        (KEEP / f"{what}.png").write_bytes(shot)
    charts = page.run("[...document.querySelectorAll('.plot')].map(plot => plot.id)")
    boxes = [{**page.box_of(chart), "id": chart} for chart in charts]
    below = [box for box in boxes if (box["y"] + box["height"]) * SCALE > picture.height]
    shown = [(0, picture, [box for box in boxes if box not in below])]
    for group in strips(below, 16000 / SCALE):
        top, bottom = group[0]["y"], max(box["y"] + box["height"] for box in group)
        clip = {"x": 0, "y": top, "width": picture.width / SCALE, "height": bottom - top}
        shown.append((top, pixels(page.screenshot(clip, SCALE)), group))
    for top, strip, group in shown:
        for box in group:
            edges = (box["x"], box["y"] - top, min(box["x"] + box["width"], strip.width / SCALE), box["y"] + box["height"] - top)
            part = strip.crop([int(edge * SCALE) for edge in edges])
            assert part.height > 40 * SCALE and part.width > 200 * SCALE, f"{what}: {box['id']} is {part.size}"
            counts = [count for count, _ in part.getcolors(part.width * part.height)]
            ink = 1 - max(counts) / sum(counts)
            # Thin lines take twice the share of a picture of half the size.
            assert ink > 0.01 / SCALE and len(counts) > 8, f"{what}: {box['id']} is empty: {ink:.2%} of its pixels, {len(counts)} colours"
    return picture


# Texts of a chart that lie on each other, of each group of the same kind: an axis' ticks, a legend, the names of points.
OVERLAPS = """(() => {
  const found = [];
  for (const group of document.querySelectorAll('.plot svg .role-axis-label, .plot svg .role-legend, .plot svg .labels_marks')) {
    const boxes = [...group.querySelectorAll('text')].filter(one => one.textContent && getComputedStyle(one).opacity !== '0'
      && one.getAttribute('opacity') !== '0').map(one => ({ text: one.textContent, box: one.getBoundingClientRect() }));
    for (const [i, a] of boxes.entries()) for (const b of boxes.slice(i + 1)) {
      // Names that stand at an angle have boxes that are larger than they are.
      if (group.querySelector('text[transform*=rotate]')) continue;
      const wide = Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left);
      const high = Math.min(a.box.bottom, b.box.bottom) - Math.max(a.box.top, b.box.top);
      if (wide > 1 && high > 3) found.push(`${group.closest('figure').id}: ${a.text} | ${b.text}`);
    }
  }
  return found;
})()"""


def check_legible(page, what):
    overlaps = page.run(OVERLAPS)
    assert not overlaps, f"{what}: texts lie on each other: {overlaps[:5]}"


def check_sideways(page, what):
    """Checks that a frame wider than the screen says so, and has a shadow on the side where there is more."""
    frames = page.run("""[...document.querySelectorAll('.frame')].map(frame => {
      const scroll = frame.querySelector('.scroll'), more = () => [...frame.classList].filter(name => name.startsWith('more')).join();
      const answer = { chart: frame.closest('figure').id, room: scroll.scrollWidth - scroll.clientWidth, more: more(),
        hint: getComputedStyle(frame.nextElementSibling).display !== 'none', focus: scroll.tabIndex === 0 };
      return answer;
    })""")
    for frame in frames:
        wide = frame["room"] > 1
        assert frame["hint"] == wide and (frame["more"] == "more-right") == wide and (frame["focus"] or not wide), f"{what}: {frame}"
    return [frame["chart"] for frame in frames if frame["room"] > 1]


def check_looks(page, what, charts, every):
    """On a screen and a telephone; `every`: also in the dark and in print, whose colours are those of one style sheet."""
    page.wait_for("document.documentElement.dataset.drawn !== undefined")
    drawn = int(page.run("document.documentElement.dataset.drawn"))
    assert drawn == charts if charts is not None else drawn >= 0, f"{what}: {drawn} charts"
    light = medians(check_charts(page, f"{what}_light"))
    check_legible(page, f"{what}, wide")
    assert min(light) > 0.9, f"{what}: {light}"
    if every:
        page.look(dark=True)
        dark = medians(check_charts(page, f"{what}_dark"))
        assert max(dark) < 0.2, f"{what}: {dark}"
    page.look(360, 740)
    page.wait_for("[...document.querySelectorAll('figure:not(.wide) .plot svg')].every(svg => svg.getBoundingClientRect().width <= 360)")
    check_charts(page, f"{what}_phone")
    check_legible(page, f"{what}, telephone")
    check_sideways(page, what)
    width = page.run("document.documentElement.scrollWidth")
    assert width <= 360, f"{what}: on a telephone of 360 pixels the page is {width} wide"
    if every:
        page.look(medium="print", dark=True)
        time.sleep(1)
        shot = page.screenshot(scale=SCALE)  # its charts have the colours of the light page
        if KEEP:
            (KEEP / f"{what}_print.png").write_bytes(shot)
        paper = medians(pixels(shot))
        assert min(paper) > 0.9, f"{what}: prints dark"
    page.look()


def check_use(page):
    """By keyboard and button: a control has the focus, tables open with the text of their CSV, downloads are whole."""
    page.call("Input.dispatchKeyEvent", type="keyDown", key="Tab", code="Tab", windowsVirtualKeyCode=9)
    assert page.run("document.activeElement.tagName") == "A", page.run("document.activeElement.tagName")
    unnamed = page.run("[...document.querySelectorAll('select')].filter(field => !field.getAttribute('aria-label')).length")
    assert unnamed == 0, f"{unnamed} fields have no name"
    same = page.run("""(async () => {
      const figures = [...document.querySelectorAll('figure')];
      for (const figure of figures) figure.querySelector('details.data').open = true;
      await new Promise(done => setTimeout(done, 500));
      for (const figure of figures) {
        const lines = readCsv(JSON.parse(document.getElementById(figure.id + '.csv').textContent));
        const shown = [...figure.querySelectorAll('tr')].map(line => [...line.children].map(cell => cell.textContent));
        if (JSON.stringify(lines) !== JSON.stringify(shown)) return figure.id;
        figure.querySelector('details.data').open = false;
      }
      return '';
    })()""")
    assert same == "", f"the table of {same} is not its CSV"
    saved = page.run("""(async () => {
      const saved = [];
      const original = HTMLAnchorElement.prototype.click;
      const texts = [];
      const make_url = URL.createObjectURL;
      URL.createObjectURL = blob => { texts.push(blob.text()); return make_url(blob); };
      HTMLAnchorElement.prototype.click = function () { saved.push([this.download, this.href.slice(0, 22)]); };
      for (const button of document.querySelectorAll('#break_even .tools button')) button.click();
      for (let i = 0; i < 300 && saved.length < 4; i++) await new Promise(done => setTimeout(done, 50));
      HTMLAnchorElement.prototype.click = original;
      URL.createObjectURL = make_url;
      return { saved, texts: await Promise.all(texts) };
    })()""")
    assert sorted(name for name, _ in saved["saved"]) == ["break_even.csv", "break_even.png", "break_even.svg", "break_even.vl.json"], saved["saved"]
    assert next(address for name, address in saved["saved"] if name.endswith("png")).startswith("data:image/png"), saved["saved"]
    spec = json.loads(next(text for text in saved["texts"] if text.startswith("{")))
    rows = len(next(text for text in saved["texts"] if text.startswith("codec,")).strip().split("\n")) - 1
    assert spec["$schema"].endswith("/v6.json") and len(spec["datasets"]["table"]) == rows > 100, rows
    drawing = next(text for text in saved["texts"] if text.startswith("<svg"))
    assert "var(--" not in drawing and "#0072b2" in drawing, "a picture for papers has colours, not names of the page's style"
    # The choice of another network draws another picture.
    before = page.run("document.querySelector('#phases svg').outerHTML")
    page.run("(() => { const field = document.querySelector('#phases select'); field.selectedIndex = 0;"
             " field.dispatchEvent(new Event('input')); field.dispatchEvent(new Event('change')); })()")
    page.wait_for(f"document.querySelector('#phases svg').outerHTML !== {json.dumps(before)}", 20)


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    sample_records.write_records(GRADTOOL, SAMPLE, folder)
    inputs = {"whole": folder} | sample_records.variants(folder)
    # More codecs than colours on one page, on a network of one's own, where no codec within the limit is worth a ring.
    sample_records.run(GRADTOOL, "bench", SAMPLE, "--codec", "qsgd:bits=[3,5,6,8],natural,topk:ratio=[0.2,0.3]", "-n", 6, "--timing",
                       "isolated", "--network", "lab:alpha=12us,beta=900Gbps", "--nodes", 16, "--json", folder / "other.json")
    inputs["two"] = folder
    inputs["cluster"] = folder / "cluster.json"
    sample_records.write_cluster(GRADTOOL, SAMPLE, inputs["cluster"])
    inputs["training"] = folder / "train.json"
    sample_records.write_training(inputs["training"])
    pages = {}
    for what, source in list(inputs.items()):
        pages[what] = folder / f"{what}.html"
        given = {"whole": [folder / "bench.json", folder / "analyze.json", folder / "info.json"],
                 "two": [folder / "bench.json", folder / "other.json"]}.get(what, [source])
        sample_records.run(GRADTOOL, "report", *given, "-o", pages[what])
    page = browser.Browser(browser.find())
    try:
        for what, path in pages.items():
            page.look()
            page.open(path)
            check_looks(page, what, {"whole": 27, "empty": 0, "training": 6}.get(what),
                        every=what in ("whole", "training"))  # which together have every kind of chart
            if what == "whole":
                check_use(page)
            assert not page.messages, f"{what}: the console says {page.messages}"
            asked = [url for url in page.requests if not url.startswith(("file:", "data:", "blob:"))]
            assert not asked, f"{what}: the page asked for {asked}"
    finally:
        page.close()
print(f"{len(pages)} pages drawn")
