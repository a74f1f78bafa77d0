"""Text for training: what is taken, what is refused, and which windows a batch holds."""

import hashlib
import os

import numpy as np
import pytest

from vkdnn.errors import ArgumentError
from vkdnn.train import Corpus, batch_at, load_text, sample_text, standard_library
from vkdnn.train import data as data_module


def corpus_of(content):
    return Corpus("test", np.frombuffer(content, np.uint8))


def test_a_file_and_its_batches(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text("It was the best of times, it was the worst of times. é", encoding="utf-8")
    corpus = load_text(path)
    assert corpus.data.tobytes() == path.read_bytes()
    tokens = batch_at(corpus, step=0, batch=3, length=8, seed=0)
    assert tokens.shape == (3, 9) and tokens.dtype == np.int32
    for row in tokens:
        assert bytes(row.tolist()) in path.read_bytes()


def test_a_folder_is_all_its_text_in_order_of_paths(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "two.txt").write_bytes(b"two")
    (tmp_path / "a.txt").write_bytes(b"one\n")
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "image.png").write_bytes(b"\x89PNG\0\0")
    (tmp_path / ".hidden").write_bytes(b"hidden")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_bytes(b"config")
    os.mkfifo(tmp_path / "pipe")
    corpus = load_text(tmp_path)
    assert corpus.data.tobytes() == b"one\ntwo\n"
    assert (corpus.files, corpus.skipped) == (2, 1)
    assert "2 files" in str(corpus) and "1 file left out" in str(corpus)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"is empty; give"),
        (b"abc\0def", r"is binary \(a NUL byte at offset 3\)"),
        ("abc".encode("utf-16"), r"is binary"),
        ("café".encode("latin1"), r"is not UTF-8 text \(byte 0xe9 at offset 3\); convert it, .*iconv"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path, content, message):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ArgumentError, match=message):
        load_text(path)


def test_what_is_no_file_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ArgumentError, match=r"nothing does not exist; name a text file"):
        load_text(tmp_path / "nothing")
    with pytest.raises(ArgumentError, match=r"holds no text; name a folder"):
        load_text(tmp_path)
    (tmp_path / "image.png").write_bytes(b"\0")
    with pytest.raises(ArgumentError, match=r"holds 1 files, none of them UTF-8 text"):
        load_text(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ArgumentError, match=r"pipe is neither a file nor a folder"):
        load_text(tmp_path / "pipe")
    monkeypatch.setattr(data_module, "MAX_BYTES", 10)
    (tmp_path / "long.txt").write_bytes(b"x" * 11)
    with pytest.raises(ArgumentError, match=r"has 11 bytes, the limit is 10"):
        load_text(tmp_path / "long.txt")
    with pytest.raises(ArgumentError, match=r"more than 10 bytes; name a smaller folder"):
        load_text(tmp_path)


def test_a_text_shorter_than_a_window_is_refused():
    assert batch_at(corpus_of(b"123456789"), 0, 2, 8, 0).tolist() == [list(b"123456789")] * 2
    with pytest.raises(ArgumentError, match=r"has 8 bytes, but one window takes 9"):
        batch_at(corpus_of(b"12345678"), 0, 2, 8, 0)


def test_batches_depend_on_seed_and_step_alone():
    corpus = sample_text()
    first = batch_at(corpus, 0, 8, 128, 0)
    assert np.array_equal(first, batch_at(corpus, 0, 8, 128, 0))
    assert np.array_equal(first[:3], batch_at(corpus, 0, 3, 128, 0))
    assert not np.array_equal(first, batch_at(corpus, 1, 8, 128, 0))
    assert not np.array_equal(first, batch_at(corpus, 0, 8, 128, 1))
    digest = hashlib.sha256(first.astype("<i4").tobytes()).hexdigest()
    assert digest == "31acac2e2a4725b561967c4d80a108fe122bf7692bdc56d8de016bbff5bfe443"


def test_windows_come_from_the_whole_text():
    corpus = corpus_of(bytes(range(16)))
    starts = batch_at(corpus, 0, 1000, 7, 0)[:, 0]
    assert sorted(set(starts.tolist())) == list(range(9))


def test_the_text_that_ships_is_the_apache_license():
    content = sample_text().data.tobytes()
    assert b"Apache License" in content[:200]
    digest = hashlib.sha256(content).hexdigest()
    assert digest == "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"


def test_the_standard_library_is_python_without_its_tests():
    corpus = standard_library()
    content = corpus.data.tobytes()
    assert corpus.files > 100 and b"class OrderedDict(dict):" in content
    assert b"class TestCase(object):" in content  # unittest is no test
    assert b"class RegressionTests(" not in content
