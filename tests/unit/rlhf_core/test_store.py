"""The store: atomic files by key, and logs that survive a crash."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rlhf_core.errors import ConfigError
from rlhf_core.store import LocalStore, open_store


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "a folder")


def test_put_get_list_delete(store: LocalStore) -> None:
    assert store.list() == []
    store.put("b/two.json", b"2")
    store.put("a.json", b"1")
    store.put("b/c/three.json", b"3")
    assert store.get("b/two.json") == b"2"
    assert store.list() == ["a.json", "b/c/three.json", "b/two.json"]
    assert store.list("b") == ["b/c/three.json", "b/two.json"]
    assert store.list("a.json") == ["a.json"]
    store.delete("b")
    store.delete("b")
    store.delete("no/such")
    assert store.list() == ["a.json"]
    with pytest.raises(FileNotFoundError):
        store.get("b/two.json")


@pytest.mark.parametrize("key", ["../out", "a/../../out", "/etc/passwd", "a/../../../x"])
def test_a_key_that_leaves_the_root_is_refused(store: LocalStore, key: str) -> None:
    for use in (store.get, store.delete, store.list, lambda k: store.put(k, b"")):
        with pytest.raises(ConfigError, match="must stay below"):
            use(key)


def test_a_link_out_of_the_root_is_refused(store: LocalStore, tmp_path: Path) -> None:
    store.put("a", b"")
    (store.root / "link").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="must stay below"):
        store.put("link/out", b"")


def test_a_failed_put_leaves_the_old_content_and_nothing_else(store: LocalStore) -> None:
    store.put("key", b"old")
    with pytest.raises(TypeError):
        store.put("key", "no bytes")  # type: ignore[arg-type]
    assert store.get("key") == b"old"
    assert [file.name for file in store.root.iterdir()] == ["key"]


def test_a_reader_sees_old_or_new_but_never_a_part(store: LocalStore) -> None:
    contents = [bytes([n]) * 200_000 for n in range(2)]
    store.put("key", contents[0])
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for content in contents:
                store.put("key", content)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = {store.get("key") for _ in range(150)}
    finally:
        stop.set()
        writer.join()
    assert seen <= set(contents)


def test_a_write_killed_in_the_middle_is_not_listed(store: LocalStore) -> None:
    store.put("key", b"old")
    script = (
        "import os, sys\n"
        "from rlhf_core.store import LocalStore\n"
        "os.fsync = lambda _: os._exit(9)\n"
        "LocalStore(sys.argv[1]).put('key', b'new')\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(store.root)], check=False)
    assert done.returncode == 9
    assert store.get("key") == b"old"
    assert store.list() == ["key"]


def test_append_repairs_a_torn_line(store: LocalStore) -> None:
    store.append("log", "one")
    store.append("log", "two")
    assert store.get("log") == b"one\ntwo\n"
    path = store.path("log")
    path.write_bytes(path.read_bytes() + b'{"torn":')
    store.append("log", "three")
    store.append("log", "four")
    assert store.get("log") == b'one\ntwo\n{"torn":\nthree\nfour\n'


def test_append_to_an_empty_file_starts_with_the_line(store: LocalStore) -> None:
    store.put("log", b"")
    store.append("log", "ä")
    assert store.get("log").decode() == "ä\n"


def test_a_uri_leads_back(store: LocalStore) -> None:
    store.put("a#b %20", b"x")
    assert store.uri.startswith("file:///")
    assert open_store(store.uri).get("a#b %20") == b"x"
    assert open_store(f"{store.uri}/sub").uri == f"{store.uri}/sub"
    assert open_store(str(store.root)).uri == store.uri


def test_another_scheme_is_refused() -> None:
    with pytest.raises(ConfigError, match="no store for 's3' is installed"):
        open_store("s3://bucket/x")
