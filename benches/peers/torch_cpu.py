#!/usr/bin/env python3
"""Make a folder with a PyTorch that runs on the CPU, from PyPI alone.

Where https://download.pytorch.org is reachable you don't need this:

    pip install torch numpy matplotlib --index-url https://download.pytorch.org/whl/cpu \\
        --extra-index-url https://pypi.org/simple

PyPI's own Linux wheel is linked against several gigabytes of CUDA libraries and does not even import
without them. This installs the wheel alone and compiles an empty stand-in for each missing library,
whose every function reports "no CUDA device". torch then behaves as on a machine without a GPU:
MKL, oneDNN, gloo and FSDP2 are all there. It needs a C compiler and readelf.

    python3 benches/peers/torch_cpu.py target/torch
    source target/torch/env
    python -c 'import torch; print(torch.__version__)'
"""

import argparse
import os
import re
import subprocess
import sys
import venv
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

REQUIREMENTS = [
    "numpy", "matplotlib", "typing_extensions", "sympy", "networkx", "jinja2", "filelock", "fsspec",
    "setuptools>=77",
]

# Symbols that carry no version in the wheel, and so don't say which library they come from.
CUDA_NAME = re.compile(r"^(cu|nccl|nv|__cuda|_Z.*nvshmem|_ZN5cudnn)")

# What every function answers: cudaErrorNoDevice, which is CUDA_ERROR_NO_DEVICE, too.
NO_DEVICE = 100


@dataclass
class Library:
    """A shared library that the wheel wants and that is not there."""

    # Version of the symbols -> the symbols.
    versions: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    unversioned: set[str] = field(default_factory=set)


def readelf(option: str, path: Path) -> list[str]:
    command = ["readelf", "-W", option, str(path)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def unresolved(path: Path) -> set[str]:
    """Names of the libraries that the loader does not find."""
    listing = subprocess.run(["ldd", str(path)], capture_output=True, text=True).stdout
    return set(re.findall(r"^\s*(\S+) => not found", listing, re.M))


def wanted_versions(path: Path) -> Iterator[tuple[str, str]]:
    """Pairs of a library and a symbol version that `path` wants from it."""
    library = ""
    for line in readelf("--version-info", path):
        if found := re.search(r"File: (\S+)\s+Cnt", line):
            library = found[1]
        elif library and (found := re.search(r"Name: (\S+)\s+Flags", line)):
            yield library, found[1]


def symbols(path: Path) -> Iterator[tuple[bool, str, str]]:
    """Of each dynamic symbol: whether it is defined here, its name and its version."""
    for line in readelf("--dyn-syms", path):
        columns = line.split()
        if len(columns) >= 8 and columns[0].rstrip(":").isdigit():
            name, _, version = columns[7].partition("@")
            yield columns[6] != "UND", name, version.lstrip("@")


def missing_libraries(folder: Path) -> dict[str, Library]:
    """What the libraries in `folder` miss, with the symbols that must be stood in for."""
    names: set[str] = set()
    wanted: dict[str, set[str]] = defaultdict(set)
    versioned: dict[str, set[str]] = defaultdict(set)
    defined: set[str] = set()
    orphans: set[str] = set()
    for path in sorted(folder.glob("*.so*")):
        names |= unresolved(path)
        for name, version in wanted_versions(path):
            wanted[name].add(version)
        for is_defined, name, version in symbols(path):
            if is_defined:
                defined.add(name)
            elif version:
                versioned[version].add(name)
            else:
                orphans.add(name)
    libraries = {name: Library() for name in sorted(names)}
    for name, library in libraries.items():
        for version in sorted(wanted[name]):
            library.versions[version] = versioned[version]
    # One library may define them all: the loader looks in every one.
    host = next((n for n in libraries if n.startswith("libcudart")), None)
    if host is not None:
        libraries[host].unversioned = {n for n in orphans - defined if CUDA_NAME.match(n)}
    return libraries


def stand_in(symbol: str) -> str:
    if "String" in symbol or "ErrorName" in symbol:
        return f'const char *{symbol}(void) {{ return "no CUDA device"; }}'
    return f"int {symbol}(void) {{ return {NO_DEVICE}; }}"


def compile_stand_in(name: str, library: Library, folder: Path) -> None:
    all_symbols = library.unversioned.union(*library.versions.values())
    source, script = folder / "stand_in.c", folder / "stand_in.map"
    source.write_text("\n".join(stand_in(symbol) for symbol in sorted(all_symbols)) + "\n")
    command = ["cc", "-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{name}"]
    if library.versions:
        node = "{version} {{ global: {symbols} }};\n"
        script.write_text("".join(
            node.format(version=version, symbols=" ".join(f"{s};" for s in sorted(names)))
            if names else f"{version} {{ }};\n"
            for version, names in library.versions.items()
        ))
        command.append(f"-Wl,--version-script={script}")
    subprocess.run([*command, "-o", str(folder / name), str(source)], check=True)
    for draft in (source, script):
        draft.unlink(missing_ok=True)


def install(root: Path, version: str) -> None:
    venv.create(root, with_pip=True)
    python = root / "bin/python"

    def pip(*arguments: str) -> None:
        command = [str(python), "-m", "pip", "-q", "--disable-pip-version-check", "install"]
        subprocess.run([*command, *arguments], check=True)

    pip(*REQUIREMENTS)
    pip("--no-deps", f"torch=={version}")
    [libraries] = root.glob("lib/python*/site-packages/torch/lib")
    stubs = root / "stubs"
    stubs.mkdir(exist_ok=True)
    for name, library in missing_libraries(libraries).items():
        compile_stand_in(name, library, stubs)
    # The loader reads LD_LIBRARY_PATH when python starts, so it can't be set from within.
    (root / "env").write_text(
        f"export LD_LIBRARY_PATH={stubs}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}\n"
        f"export PATH={root}/bin:$PATH\n"
    )
    check = "import torch; print('torch', torch.__version__, 'cuda', torch.cuda.is_available())"
    environment = {**os.environ, "LD_LIBRARY_PATH": str(stubs)}
    subprocess.run([str(python), "-c", check], check=True, env=environment)


def main() -> None:
    description, _, epilog = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=description, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="made if missing; some 2 GB")
    parser.add_argument("--version", default="2.15.0", help="of torch (default %(default)s)")
    args = parser.parse_args()
    if not sys.platform.startswith("linux"):
        sys.exit("only PyPI's Linux wheels need this; elsewhere: pip install torch numpy matplotlib")
    install(args.folder.resolve(), args.version)
    print(f"now: source {args.folder.resolve()}/env")


if __name__ == "__main__":
    main()
