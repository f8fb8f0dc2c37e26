"""What the extension needs at run time."""

from __future__ import annotations

from pathlib import Path

import pytest

from moonpool import _native

# glibc's own parts.
GLIBC = {
    "libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1",
    "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1",
}  # fmt: skip


def needed(path: Path) -> set[str]:
    elffile = pytest.importorskip("elftools.elf.elffile", reason="pyelftools is not installed")
    with path.open("rb") as stream:
        dynamic = elffile.ELFFile(stream).get_section_by_name(".dynamic")
        return {tag.needed for tag in dynamic.iter_tags() if tag.entry.d_tag == "DT_NEEDED"}


def test_it_needs_glibc_and_nothing_else() -> None:
    assert needed(Path(_native.__file__)) <= GLIBC


def test_it_exports_its_entry_point_only() -> None:
    elffile = pytest.importorskip("elftools.elf.elffile", reason="pyelftools is not installed")
    with Path(_native.__file__).open("rb") as stream:
        symbols = elffile.ELFFile(stream).get_section_by_name(".dynsym")
        exported = {
            symbol.name
            for symbol in symbols.iter_symbols()
            if symbol.entry.st_shndx != "SHN_UNDEF"
            and symbol.entry.st_info.bind in ("STB_GLOBAL", "STB_WEAK")
        }
    assert "PyInit__native" in exported
    ours = {name for name in exported if "moonpool" in name}
    assert ours == set()


def test_the_best_checksum_of_the_processor_is_used() -> None:
    flags = Path("/proc/cpuinfo").read_text()
    if " sse4_2" in flags:
        assert _native.crc32c_implementation() != "table"
    assert isinstance(_native.fence_is_exact(), bool)
