"""Loading by URL, from real servers on loopback: what is read, what a source is called, and what may go wrong."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from remote_parts import Bucket, Web, cut_off, endless, s3_server, web_server

from ragbraid.nodes.load import load_files
from ragbraid.nodes.remote_files import FsspecFiles
from ragbraid.nodes.resource_remote import remote_files
from ragbraid.registry.context import StepContext, step_context
from ragbraid.registry.contracts import DocumentSet
from ragbraid.registry.errors import NodeInputError, RunError, ServiceError, SettingsError

# Connections that a server of a test leaves behind are closed with it.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


@pytest.fixture(scope="module")
def make_bucket() -> Iterator[Any]:
    with s3_server() as make:
        yield make


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    (tmp_path / "docs/sub").mkdir(parents=True)
    (tmp_path / "docs/a.md").write_text("# A\n")
    (tmp_path / "docs/sub/b c.txt").write_text("b")
    (tmp_path / "docs/水.html").write_text("<title>Water</title>")
    (tmp_path / "docs/pic.png").write_bytes(b"\x89PNG")
    (tmp_path / "above.md").write_text("above")
    with web_server(tmp_path) as server:
        yield server


def opened(bucket: Bucket, **settings: Any) -> Any:
    return remote_files(**{"attempts": 1, **bucket.settings, **settings})


def sources(found: DocumentSet) -> list[str]:
    return [document.source for document in found.documents]


def reasons(found: DocumentSet) -> dict[str, str]:
    return {failure.source: failure.reason for failure in found.failures}


# -- S3 ----------------------------------------------------------------------------------------------------------------


def test_a_bucket_is_read_like_a_folder_and_its_sources_are_urls(make_bucket: Any) -> None:
    bucket = make_bucket("like-a-folder", {
        "docs/b.md": "# B", "docs/a b/水 100%.txt": "water", "docs/": "", "docs/empty.txt": "", "docs/pic.png": "x",
        "docs/.hidden.md": "h", "docs/q?x#y.md": "q", "docs/../../etc/passwd.md": "p", "docs//double.md": "d",
        "other.md": "o",
    })  # fmt: skip
    remote = opened(bucket)
    context = StepContext()
    with step_context(context):
        found = load_files(path="s3://like-a-folder/docs/", remote=remote)
    assert sources(found) == [
        "s3://like-a-folder/docs/a b/水 100%.txt",
        "s3://like-a-folder/docs/b.md",
        "s3://like-a-folder/docs/empty.txt",
        "s3://like-a-folder/docs/q?x#y.md",
    ]
    assert found.documents[0].title == "水 100%"
    assert str(found.documents[0].metadata["last_modified"]).endswith("+00:00")
    assert (found.scope, found.root, found.complete) == ("s3://like-a-folder/docs/**/*", "", True)
    assert reasons(found).keys() == {
        "s3://like-a-folder/docs/../../etc/passwd.md",
        "s3://like-a-folder/docs//double.md",
    }
    assert context.notes == ["1 files of other formats were passed over."]
    only = load_files(path="s3://like-a-folder/docs/**/*.txt", remote=remote, exclude=["a b"], prefix="p/")
    assert sources(only) == ["p/s3://like-a-folder/docs/empty.txt"]
    assert sources(load_files(path="s3://like-a-folder/docs/b.md", remote=remote)) == ["s3://like-a-folder/docs/b.md"]
    assert sources(load_files(path="s3://like-a-folder", remote=remote))[-1] == "s3://like-a-folder/other.md"
    remote.close()


def test_what_is_not_there_is_an_error_and_what_is_empty_is_an_empty_set(make_bucket: Any) -> None:
    remote = opened(make_bucket("empty-bucket"))
    found = load_files(path="s3://empty-bucket/", remote=remote)
    assert (len(found), found.complete) == (0, True)
    for wrong in ("s3://empty-bukket/", "s3://empty-bucket/docs/", "s3://empty-bucket/a.md"):
        with pytest.raises(RunError, match="Nothing is at `s3://") as caught:
            load_files(path=wrong, remote=remote)
        assert caught.value.kind == "input"
    remote.close()


def test_an_unchanged_object_is_not_downloaded_again_and_a_changed_one_is(
    make_bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    downloaded: list[str] = []
    download = FsspecFiles._download

    def counted(self: FsspecFiles, file: Any, max_bytes: int) -> bytes:
        downloaded.append(file.path)
        return download(self, file, max_bytes)

    monkeypatch.setattr(FsspecFiles, "_download", counted)
    bucket = make_bucket("kept", {"a.md": "# One", "b.md": "# Two", "c.md": "# Three"})
    remote = opened(bucket, cache_path=tmp_path / "cache")
    first = load_files(path="s3://kept/", remote=remote)
    assert sorted(downloaded) == ["a.md", "b.md", "c.md"]
    downloaded.clear()
    assert load_files(path="s3://kept/", remote=remote) == first
    assert downloaded == []
    bucket["a.md"] = "# ONE"  # as long as before, and in the same second
    del bucket["c.md"]
    files = [file for file in (tmp_path / "cache").rglob("*") if file.is_file()]
    damaged = next(file for file in files if b"# Two" in file.read_bytes())
    damaged.write_bytes(damaged.read_bytes().replace(b"Two", b"Owt"))
    assert [document.text for document in load_files(path="s3://kept/", remote=remote).documents] == ["# ONE", "# Two"]
    assert sorted(downloaded) == ["a.md", "b.md"]
    assert sum(file.is_file() for file in (tmp_path / "cache").rglob("*")) == 2
    remote.close()


def test_a_file_that_is_too_large_is_not_downloaded(make_bucket: Any) -> None:
    remote = opened(make_bucket("large", {"big.md": "x" * 500, "small.md": "y"}))
    found = load_files(path="s3://large/", remote=remote, max_bytes=100)
    assert sources(found) == ["s3://large/small.md"]
    assert reasons(found) == {"s3://large/big.md": "It is larger than 100 bytes; raise `max_bytes` to read it."}
    remote.close()


def test_no_credentials_is_a_sentence_without_them(monkeypatch: pytest.MonkeyPatch, make_bucket: Any) -> None:
    bucket = make_bucket("no-credentials")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    remote = remote_files(options={"endpoint_url": bucket.url}, attempts=1)
    with pytest.raises(
        ServiceError, match="`s3://no-credentials/` cannot be listed: there are no credentials"
    ) as caught:
        load_files(path="s3://no-credentials/", remote=remote)
    assert caught.value.kind == "auth"
    remote.close()


def test_a_misspelled_option_is_a_sentence() -> None:
    remote = remote_files(options={"endpoint_uri": "http://127.0.0.1:1"})
    with pytest.raises(SettingsError, match="option or credential `endpoint_uri` that `s3://` does not know") as caught:
        load_files(path="s3://somewhere/", remote=remote)
    assert "endpoint_url" in str(caught.value.hint)
    with pytest.raises(SettingsError, match="`secret` belongs under `credentials`"):
        remote_files(options={"secret": "s"})


def test_a_listing_that_fails_half_way_ends_the_run(tmp_path: Path) -> None:
    pages = {"first": True}

    def list_objects(handler: Any) -> None:
        if "continuation-token" in handler.path:
            handler.send_error(500)
            return
        pages["first"] = False
        body = (
            b'<?xml version="1.0"?><ListBucketResult><Name>half</Name><KeyCount>1</KeyCount><MaxKeys>1</MaxKeys>'
            b"<IsTruncated>true</IsTruncated><NextContinuationToken>more</NextContinuationToken><Contents>"
            b"<Key>a.md</Key><Size>1</Size><LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            b"</ListBucketResult>"
        )
        handler.send_response(200)
        handler.send_header("Content-Type", "application/xml")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    with web_server(tmp_path) as server:
        server.rules["/half"] = list_objects
        remote = remote_files(credentials={"key": "k", "secret": "s"}, options={"endpoint_url": server.url}, attempts=1)
        with pytest.raises(ServiceError, match="`s3://half/` cannot be listed: its server is overloaded or broken"):
            load_files(path="s3://half/", remote=remote)
        remote.close()
    assert not pages["first"]


# -- the web -----------------------------------------------------------------------------------------------------------


def test_a_page_of_links_is_read_like_a_folder(web: Web) -> None:
    found = load_files(path=f"{web.url}/docs/")
    assert sources(found) == [
        f"{web.url}/docs/a.md", f"{web.url}/docs/sub/b%20c.txt", f"{web.url}/docs/%E6%B0%B4.html"
    ]  # fmt: skip
    assert [document.title for document in found.documents] == ["A", "b c", "Water"]
    assert (found.scope, found.complete) == (f"{web.url}/docs/**/*", True)
    assert sources(load_files(path=f"{web.url}/docs/*.md")) == [f"{web.url}/docs/a.md"]


def test_links_elsewhere_are_not_followed_whatever_a_page_says(web: Web) -> None:
    def page(handler: Any) -> None:
        links = ["../above.md", "/above.md", "%2e%2e/above.md", "file:///etc/passwd", "http://127.0.0.1:9/x.md",
                 "?C=N;O=D", "a.md#part", "a.md"]  # fmt: skip
        body = "".join(f'<a href="{link}">x</a>' for link in links).encode()
        handler.send_response(200)
        handler.send_header("Content-Type", "text/html")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    web.rules["/docs/"] = page
    found = load_files(path=f"{web.url}/docs/")
    assert sources(found) == [f"{web.url}/docs/a.md"]
    assert all("above" not in asked and "passwd" not in asked for asked in web.asked)


def test_a_listing_in_circles_ends(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ragbraid.nodes.remote_files.MAX_PAGES", 20)

    def page(handler: Any) -> None:
        body = f'<a href="{handler.path}again/">x</a>'.encode()
        handler.send_response(200)
        handler.send_header("Content-Type", "text/html")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)
        web.rules[f"{handler.path}again/"] = page

    web.rules["/docs/"] = page
    with pytest.raises(ServiceError, match="has more than 20 pages; perhaps it leads in circles"):
        load_files(path=f"{web.url}/docs/")


def test_a_sub_page_that_cannot_be_listed_ends_the_run(web: Web) -> None:
    web.rules["/docs/sub/"] = 503
    with pytest.raises(ServiceError, match=r"/docs/sub/` cannot be listed: .* \(HTTP 503\)"):
        load_files(path=f"{web.url}/docs/", remote=remote_files(attempts=1))


def test_single_files_fail_each_for_itself_and_the_others_are_read(web: Web, tmp_path: Path) -> None:
    for name in ("half", "gone", "refused", "endless", "binary"):
        (tmp_path / f"docs/{name}.md").write_text(name)
    (tmp_path / "docs/binary.md").write_bytes(b"\0\1")
    web.rules |= {"/docs/half.md": cut_off, "/docs/gone.md": 404, "/docs/refused.md": 403, "/docs/endless.md": endless}
    remote = remote_files(attempts=1)
    found = load_files(path=f"{web.url}/docs/*.md", remote=remote, max_bytes=10_000)
    assert sources(found) == [f"{web.url}/docs/a.md"]
    assert {source.rpartition("/")[2]: reason for source, reason in reasons(found).items()} == {
        "binary.md": "It is a binary file (it holds NUL bytes).",
        "endless.md": "It is larger than 10,000 bytes; raise `max_bytes` to read it.",
        "gone.md": "It is gone since it was listed.",
        "half.md": f"`{web.url}/docs/half.md` cannot be read: the connection was cut off half-way.",
        "refused.md": f"`{web.url}/docs/refused.md` cannot be read: access is refused (HTTP 403).",
    }
    remote.close()


def test_a_place_that_goes_away_meanwhile_ends_the_run(web: Web, tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"docs/n{number}.md").write_text("n")
        web.rules[f"/docs/n{number}.md"] = 503
    remote = remote_files(attempts=1, connections=2)
    with pytest.raises(ServiceError, match="10 files in a row could not be read") as caught:
        load_files(path=f"{web.url}/docs/*.md", remote=remote)
    assert caught.value.transient
    remote.close()


def test_what_fails_once_is_tried_again(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ragbraid.nodes.remote_files._FIRST_PAUSE_SECONDS", 0.0)

    def once(handler: Any) -> None:
        del web.rules["/docs/a.md"]
        handler.send_error(503)

    web.rules["/docs/a.md"] = once
    assert sources(load_files(path=f"{web.url}/docs/a.md")) == [f"{web.url}/docs/a.md"]


def test_a_query_is_sent_and_is_no_part_of_the_name(web: Web) -> None:
    found = load_files(path=f"{web.url}/docs/a.md?X-Amz-Signature=abc123")
    assert sources(found) == [f"{web.url}/docs/a.md"]
    assert "abc123" not in found.model_dump_json()
    assert all(asked.endswith("?X-Amz-Signature=abc123") for asked in web.asked)
    with pytest.raises(NodeInputError, match="Two of the URLs are both called"):
        load_files(path=[f"{web.url}/docs/a.md?page=1", f"{web.url}/docs/a.md?page=2"])


def test_of_a_list_of_urls_one_may_fail(web: Web) -> None:
    found = load_files(path=[f"{web.url}/docs/a.md", f"{web.url}/none.md", f"{web.url}/docs"], scope="pages")
    assert sources(found) == [f"{web.url}/docs/a.md", f"{web.url}/docs"]
    assert found.documents[1].format == "html"
    assert reasons(found) == {f"{web.url}/none.md": f"Nothing is at `{web.url}/none.md`."}
    assert (found.scope, found.complete) == ("pages", True)


def test_headers_reach_their_host_and_do_not_follow_a_redirect_to_another(web: Web, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/moved.md").write_text("# Moved")
    with web_server(tmp_path / "elsewhere") as other:
        web.rules["/docs/a.md"] = f"{other.url}/moved.md"
        remote = remote_files(headers={"X-Api-Key": "do-not-tell"}, base_url=web.url)
        found = load_files(path=f"{web.url}/docs/a.md", remote=remote)
        remote.close()
    assert (sources(found), found.documents[0].text) == ([f"{web.url}/docs/a.md"], "# Moved")
    assert all(sent.get("X-Api-Key") == "do-not-tell" for _, sent in web.headers)
    assert other.headers
    assert all("X-Api-Key" not in sent for _, sent in other.headers)
    with pytest.raises(SettingsError, match="come together"):
        remote_files(headers={"X-Api-Key": "k"})


def test_redirects_in_circles_are_a_failure(web: Web) -> None:
    web.rules["/docs/a.md"] = f"{web.url}/docs/a.md"
    with pytest.raises(ServiceError, match="it redirects in circles"):
        load_files(path=f"{web.url}/docs/a.md")


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("file:///etc/passwd", "`file` cannot be loaded from by URL"),
        ("ftp://host/a.md", "`ftp` cannot be loaded from by URL"),
        ("s3://bucket::file:///etc/passwd", "A `s3` URL to load from is malformed"),
        ("s3://key:secret@bucket/a.md", "holds a user or password"),
        ("https://user:secret@host/a.md", "holds a user or password"),
        ("http://host:port/a.md", "A URL to load from is malformed"),
        ("http:///a.md", "A URL to load from is malformed"),
        ("s3://", "A `s3` URL to load from is malformed"),
    ],
)
def test_urls_that_may_not_be_read_are_refused_without_their_secrets(url: str, sentence: str) -> None:
    with pytest.raises(NodeInputError, match=sentence) as caught:
        load_files(path=url)
    assert "secret" not in str(caught.value)


def test_a_host_that_is_not_known_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    remote = remote_files(attempts=1)
    with pytest.raises(ServiceError, match="the name of its host cannot be looked up"):
        load_files(path="http://no-such-host.invalid/a.md?sig=abc123", remote=remote)
    remote.close()


def test_files_are_read_side_by_side(web: Web) -> None:
    barrier = threading.Barrier(2)

    def wait(handler: Any) -> None:
        if handler.command == "GET":
            barrier.wait(30)
        handler.send_response(200)
        handler.send_header("Content-Length", "1")
        handler.end_headers()
        if handler.command == "GET":
            handler.wfile.write(b"x")

    web.rules |= {"/docs/a.md": wait, "/docs/sub/b%20c.txt": wait}
    assert len(load_files(path=f"{web.url}/docs/", pattern=["a.md", "sub/*"])) == 2


@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidAccessKeyId", "SignatureDoesNotMatch"])
def test_credentials_that_are_refused_end_the_run_at_once(tmp_path: Path, code: str) -> None:
    def refuse(handler: Any) -> None:
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>key-in-message</Message></Error>".encode()
        handler.send_response(403)
        handler.send_header("Content-Type", "application/xml")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    with web_server(tmp_path) as server:
        server.rules["/mine"] = refuse
        remote = remote_files(credentials={"key": "k", "secret": "s"}, options={"endpoint_url": server.url})
        with pytest.raises(ServiceError, match=f"its credentials are refused .{code}.") as caught:
            load_files(path=["s3://mine/", "s3://mine/other/"], remote=remote)
        remote.close()
    assert caught.value.kind == "auth"
    assert "key-in-message" not in str(caught.value)
    assert len(server.asked) == 1
