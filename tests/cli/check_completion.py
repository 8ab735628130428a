"""Completion scripts: what a real bash proposes, and the syntax for zsh and fish. Usage: check_completion.py GRADTOOL"""
import csv
import io
import shutil
import subprocess
import sys
import tempfile

GRADTOOL = sys.argv[1]


def say(*arguments):
    return subprocess.run([GRADTOOL, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout


def proposals(*words):
    """Returns bash's proposals for the last word; none if it would complete a file name."""
    quoted = " ".join(f"'{word}'" for word in words)
    script = (f"source <('{GRADTOOL}' completion bash); COMP_WORDS=(gradtool {quoted}); COMP_CWORD={len(words)}; "
              "_gradtool; echo \"${COMPREPLY[*]}\"")
    done = subprocess.run(["bash", "--norc", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0 and done.stderr == "", done
    return done.stdout.split()


def expect(found, *wanted):
    assert sorted(found) == sorted(wanted), f"proposed {found}, not {wanted}"


def check_bash():
    assert {"bench", "capture", "info", "completion", "--help", "--version"} <= set(proposals(""))
    expect(proposals("be"), "bench")
    expect(proposals("bench", "--gran"), "--granularity")
    expect(proposals("bench", "x.h5", "--reduce", ""), "auto", "sum", "gather", "hop", "alltoall")
    expect(proposals("bench", "--reduce", "=", "ho"), "hop")
    expect(proposals("bench", "--network", "100"), "100gbe")
    expect(proposals("bench", "--config", ""))
    expect(proposals("bench", "x"))
    expect(proposals("completion", ""), "bash", "zsh", "fish")
    expect(proposals("analyze", "--only", "sp"), "spectrum")
    names = [row["name"] for what in ("codecs", "presets") for row in csv.DictReader(io.StringIO(say("list", what, "--csv", "-")))]
    expect(proposals("bench", "--codec", ""), "all", *names)
    expect(proposals("list", ""), "codecs", "comm", "columns", "models", "datasets", "presets", *names)
    expect(proposals("capture", "--model", "resnet"), "resnet18", "resnet20", "resnet32", "resnet50", "resnet110")
    expect(proposals("capture", "--dataset", "cifar"), "cifar10", "cifar100")
    expect(proposals("capture", "--optimizer", "a"), "adam", "adamw")
    # Every option that the help of any command has.
    for command in proposals(""):
        if command.startswith("-"):
            continue
        options = {word.strip(",") for line in say(command, "--help").splitlines() if line.startswith("  -")
                   for word in line.split("  ")[1].replace(",", " ").split() if word.startswith("-")}
        assert options and options <= set(proposals(command, "-")), (command, options - set(proposals(command, "-")))


def check_registered():
    """bash itself asks the function, for the program's name."""
    done = subprocess.run(["bash", "--norc", "-c", f"source <('{GRADTOOL}' completion bash); complete -p gradtool"],
                          check=True, stdout=subprocess.PIPE, text=True)
    assert "-F _gradtool" in done.stdout, done.stdout


def check_syntax(shell, *arguments):
    if shutil.which(shell) is None:
        print(f"not checked: {shell} is not installed")
        return
    with tempfile.NamedTemporaryFile("w", suffix=f".{shell}") as script:
        script.write(say("completion", shell))
        script.flush()
        done = subprocess.run([shell, *arguments, script.name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 0 and done.stderr == "", f"{shell}: {done.stderr}"


def check_fish_proposals():
    if shutil.which("fish") is None:
        return
    with tempfile.NamedTemporaryFile("w", suffix=".fish") as script:
        script.write(say("completion", "fish"))
        script.flush()
        for line, wanted in (("gradtool be", {"bench"}), ("gradtool bench --reduce ", {"auto", "sum", "gather", "hop", "alltoall"})):
            done = subprocess.run(["fish", "--no-config", "-c", f"source {script.name}; complete -C '{line}'"],
                                  stdout=subprocess.PIPE, text=True)
            found = {proposal.split("\t")[0] for proposal in done.stdout.splitlines()}
            assert found == wanted, (line, found)


check_bash()
check_registered()
check_syntax("bash", "-n")
check_syntax("zsh", "-n")
check_syntax("fish", "--no-execute")
check_fish_proposals()
print("shells complete what the program knows")
