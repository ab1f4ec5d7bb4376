"""The JavaScript client: its tests in Node, its types, its size and its npm package."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kafkasse import __version__
from tests.client.script import START, ScriptedServer, Sends, failure, message, sent_ids
from tests.clients.programs import NODE, build, docs_example, missing
from tests.support.server import ROOT

PACKAGE = ROOT / "kafkasse/assets/javascript"
GUIDE = "docs/javascript.md"
MAX_COMPRESSED_BYTES = 7000

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def _node() -> None:
    if reason := missing(NODE):
        pytest.skip(reason)


def run(*command: str, cwd: Path = ROOT, may_fail: bool = False) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=150, check=False)
    assert may_fail or done.returncode == 0, done.stdout[-6000:] + done.stderr
    return done


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder in which the npm package is installed."""
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules/kafkasse").symlink_to(PACKAGE)
    return tmp_path


@pytest.fixture
def stream() -> Iterator[ScriptedServer]:
    """A server whose stream has an event of each type, and ends with an error."""
    with closing(ScriptedServer([Sends(START + message(1) + EVENTS + failure(410), "ends")])) as server:
        yield server


def test_resumes_exactly_in_node():
    """kafkasse.test.mjs contains the tests."""
    run("node", "--test", str(Path(__file__).parent))


def test_is_smaller_than_7_kilobytes_compressed():
    assert len(gzip.compress((PACKAGE / "kafkasse.js").read_bytes(), mtime=0)) < MAX_COMPRESSED_BYTES


def test_the_npm_package_contains_the_modules_and_their_types(tmp_path):
    """An application that installs the package can import both modules."""
    [packed] = json.loads(run("npm", "pack", "--json", "--pack-destination", str(tmp_path), cwd=PACKAGE).stdout)
    shutil.unpack_archive(tmp_path / packed["filename"], tmp_path)
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "package").rename(tmp_path / "node_modules/kafkasse")
    script = 'import { Stream } from "kafkasse"; import { fileStore } from "kafkasse/node"; console.log(Stream.name)'

    printed = run("node", "--input-type=module", "-e", script, cwd=tmp_path).stdout

    assert "Stream" == printed.strip()
    assert __version__ == packed["version"]
    names = {"LICENSE", "README.md", "kafkasse.js", "kafkasse.d.ts", "node.js", "node.d.ts", "package.json"}
    assert names == {file["path"] for file in packed["files"]}


def compile_types(cwd: Path, *words: str) -> str:
    """Check the types with the compiler. Returns its output."""
    compiler = build(NODE) / "node_modules/typescript/bin/tsc"
    options = ["--noEmit", "--skipDefaultLibCheck", "--target", "es2022", "--module", "nodenext"]
    return run("node", str(compiler), *options, *words, cwd=cwd, may_fail=True).stdout


# The part of Node's types that kafkasse.d.ts needs. Node has neither Storage nor HeadersInit.
NODE_GLOBALS = """
declare const console: { log(...values: unknown[]): void };
declare function fetch(url: string, init?: RequestInit): Promise<unknown>;
declare class Headers { constructor(init?: Record<string, string>); }
interface RequestInit { headers?: object; signal?: object; }
interface URL { href: string; }
"""


@pytest.mark.timeout(900)  # may install the compiler
@pytest.mark.parametrize(("lib", "declarations"), [("es2022,dom", ""), ("es2022", NODE_GLOBALS)], ids=["page", "Node"])
def test_the_types_accept_correct_programs_only(project, lib, declarations):
    """types.ts marks its mistakes with `@ts-expect-error`, which is itself an error where there is no mistake."""
    shutil.copy(Path(__file__).parent / "types.ts", project / "types.mts")
    (project / "globals.d.ts").write_text(declarations)

    assert "" == compile_types(project, "--strict", "--lib", lib, "types.mts", "globals.d.ts")


@pytest.mark.timeout(900)  # may install the compiler
def test_the_code_needs_nothing_newer_than_node_18(tmp_path):
    """The compiler accepts the modules with the library of ES2022, which Node 18 has. It rejects a function of ES2023."""
    for name in ("kafkasse.js", "node.js"):
        shutil.copy(PACKAGE / name, tmp_path)
    (tmp_path / "newer.js").write_text("export default [].toSorted();\n")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "node.d.ts").write_text('declare module "node:fs";\n')

    files = sorted(path.name for path in tmp_path.glob("*.?s"))
    errors = compile_types(tmp_path, "--allowJs", "--checkJs", "--lib", "es2022,dom,dom.iterable", *files)

    assert {"newer.js"} == {line.partition("(")[0] for line in errors.splitlines()}
    assert ">=18" == json.loads((PACKAGE / "package.json").read_text())["engines"]["node"]


def test_the_example_for_node_resumes_after_a_restart(project):
    """The second run of the program in docs/javascript.md sends the position that the first run has stored."""
    streams = [Sends(START + message(number) + failure(410), "ends") for number in (1, 2)]
    with closing(ScriptedServer(streams)) as server:
        example = docs_example("fileStore(", GUIDE).replace("http://127.0.0.1:6917/topn/updates", server.url)
        (project / "reader.mjs").write_text(example)

        runs = [run("node", "reader.mjs", cwd=project, may_fail=True) for _ in streams]

    assert ["{ n: 1 }\n", "{ n: 2 }\n"] == [process.stdout for process in runs]
    assert [None, "1"] == sent_ids(server)


PAGE = """
globalThis.location = { href: process.argv[2] };
globalThis.sessionStorage = { getItem() {}, setItem() {} };
globalThis.localStorage = { getItem() {}, setItem: (key, id) => key === "orders of u" && console.log("saved", id) };
globalThis.user = { id: "u" };
globalThis.show = (value) => console.log("show", value);
globalThis.reloadAll = () => console.log("reload all");
await import("./page.mjs");
"""
RUN = "\nawait stream.run({ message: (event) => show(event.json()), gap: reloadAll });"
EVENTS = b'event: delete\ndata: {"key":"a"}\nid: 2\n\nevent: gap\ndata: {"reason":"r"}\nid: 3\n\n'


@pytest.mark.parametrize(
    ("part", "printed"),
    [
        ("orders of ${user.id}", "saved 0\nshow { n: 1 }\nsaved 1\nsaved 2\nreload all\nsaved 3\n"),
        ("shared: user.id", "show { n: 1 }\nreload all\n"),
    ],
)
def test_the_examples_for_a_page_handle_each_event(tmp_path, stream, part, printed):
    """They run in Node, with stubs for what the page provides. The text of docs/javascript.md contains RUN."""
    example = docs_example(part, GUIDE).replace("/topn/updates", "/t").replace("kafkasse.js", "kafkasse.mjs")
    if "import " not in example:
        example = f'import {{ Stream }} from "./kafkasse.mjs";\n{example}{RUN}'
    shutil.copy(PACKAGE / "kafkasse.js", tmp_path / "kafkasse.mjs")
    (tmp_path / "page.mjs").write_text(example)
    (tmp_path / "main.mjs").write_text(PAGE)

    done = run("node", "main.mjs", stream.url, cwd=tmp_path, may_fail=True)

    assert RUN.strip(" \n;").removeprefix("await ") in (ROOT / GUIDE).read_text().replace("\n", " ")
    assert printed == done.stdout
    assert "no: 410" in done.stderr


EVENT_SOURCE = """
import { EventSource as Original } from "eventsource";
globalThis.location = new URL(process.argv[1]);
globalThis.EventSource = class extends Original {
  constructor(url) {
    super(new URL(url, location));
  }
};
const end = (value) => {
  process.stdout.write(JSON.stringify(value));
  process.exit();
};
"""
FOLLOW = "const show = console.log, remove = console.log, showError = end;\n" + docs_example("function follow(", GUIDE)


@pytest.mark.timeout(900)  # may install the packages
@pytest.mark.parametrize(
    ("part", "page", "setup", "printed"),
    [
        ('new EventSource("/streams', "README.md", "console.log = end;\n", '{"n":1}'),
        ('follow("/topn', GUIDE, FOLLOW, '{ n: 1 }\na\n"no: 410"'),
    ],
)
def test_the_examples_with_eventsource(stream, part, page, setup, printed):
    """The examples run in Node, with the EventSource of the npm package, and print the events."""
    program = EVENT_SOURCE + setup + docs_example(part, page)

    done = run("node", "--input-type=module", "-e", program, stream.url, cwd=build(NODE), may_fail=True)

    assert printed == done.stdout, done.stderr
