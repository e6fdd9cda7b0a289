"""Lines of files whose writer is at it, or was killed."""

import gzip
import zlib

import pytest

from gradmass.lines import whole_lines

ROWS = [b'{"a": 1}\n', b"\n", b'{"a": "\xc3\xa9"}\n', b'{"b": {"c": [2]}}\n']


def read(file):
    cuts = []
    return list(whole_lines(file, lambda: cuts.append(file))), len(cuts)


def test_wherever_a_last_object_is_cut_it_is_left_out_and_told(tmp_path):
    file = tmp_path / "rows.jsonl"
    data = b"".join(ROWS)
    for length in range(len(data) + 1):
        file.write_bytes(data[:length])
        *whole, tail = data[:length].split(b"\n")
        is_whole = tail in (b"", *(row[:-1] for row in ROWS))
        expected = [line + b"\n" for line in whole] + ([tail] if tail and is_whole else [])
        assert read(file) == (expected, 0 if is_whole else 1), length


def test_half_a_gzip_member_is_cut_wherever_it_ends(tmp_path):
    file = tmp_path / "rows.jsonl.gz"
    first, second = gzip.compress(b"".join(ROWS)), gzip.compress(b'{"d": 3}\n')
    file.write_bytes(first + second)
    assert read(file) == ([*ROWS, b'{"d": 3}\n'], 0)
    file.write_bytes(first)
    assert read(file) == (ROWS, 0)
    for length in range(2, len(second)):
        file.write_bytes(first + second[:length])
        lines, num_cuts = read(file)
        assert (lines[:4], num_cuts) == (ROWS, 1), length
        assert lines[4:] in ([], [b'{"d": 3}\n'])


def test_a_cut_line_elsewhere_is_left_to_the_reader_and_damage_is_an_error(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b'{"a": 1}\n{"a"\n{"a": 2}\n')
    assert read(file) == ([b'{"a": 1}\n', b'{"a"\n', b'{"a": 2}\n'], 0)
    file = tmp_path / "rows.jsonl.gz"
    data = bytearray(gzip.compress(bytes(range(256)) * 4))
    data[20:60] = bytes(40)
    file.write_bytes(data)
    with pytest.raises((zlib.error, gzip.BadGzipFile)):
        read(file)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "gone.jsonl")
