"""Tests of the module `tools` of Python (sandbox-image/runtimes/python/modules/tools.py), against a broker of this folder."""

import asyncio
import concurrent.futures
import contextlib
import importlib.util
import inspect
import io
import json
import multiprocessing
import os
import pathlib
import pickle
import pydoc
import subprocess
import sys
import tempfile
import threading
import traceback
import types
import unittest
import datetime

FOLDER = pathlib.Path(__file__).resolve().parent
MODULE = FOLDER.parent.parent / "sandbox-image/runtimes/python/modules/tools.py"
sys.path.insert(0, str(FOLDER))
import broker


def load():
    """Loads the module anew, as `import tools` would in a new process."""
    spec = importlib.util.spec_from_file_location("tools", MODULE)
    sys.modules["tools"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Frame(list):
    """Stands for a DataFrame where there is no pandas."""


class Case(unittest.TestCase):
    def setUp(self):
        self.broker = broker.Broker()
        os.environ["SANDBOX_TOOLS"] = self.broker.name
        self.tools = load()

    def tearDown(self):
        self.tools._connections.forked()

    def calls(self):
        return [request for request in self.broker.requests if request["op"] == "call"]

    def in_new_process(self, code, **more):
        options = {"capture_output": True, "text": True, "env": {**os.environ, "PYTHONPATH": str(MODULE.parent), **more}}
        return subprocess.run([sys.executable, "-P", "-c", code], **options)


class Calls(Case):
    def test_a_call_returns_the_answer_as_a_dict(self):
        found = self.tools.crm.search_contacts(query="Ann", limit=2)
        self.assertEqual(found["contacts"], [{"id": 0, "name": "Ann 0"}, {"id": 1, "name": "Ann 1"}])
        self.assertIsInstance(found, dict)
        self.assertEqual(repr(found), repr(dict(found)))

    def test_lists_are_fetched_once_and_connections_are_reused(self):
        for _ in range(5):
            self.tools.crm.echo(value=1)
        ops = [request["op"] for request in self.broker.requests]
        self.assertEqual(ops, ["list", "tools", "call", "call", "call", "call", "call"])
        self.assertTrue(self.broker.requests[0]["brief"], "a call of one upstream waits for no other")
        self.assertEqual(self.broker.connections, 1)

    def test_one_required_argument_may_be_positional(self):
        self.assertEqual(len(self.tools.crm.search_contacts("Ann", limit=1)["contacts"]), 1)
        self.assertEqual(self.tools.crm.search_contacts({"query": "Ann", "limit": 3})["contacts"][2]["id"], 2)

    def test_odd_names_are_identifiers_and_items(self):
        tools = self.tools
        self.assertEqual(tools.crm.search_deals(a="x", b=1), {"tool": "search-deals", "a": "x", "b": 1})
        self.assertEqual(tools.crm["search-deals"](a="x", b=1)["tool"], "search-deals")
        self.assertEqual(tools.crm.import_(data=[1])["tool"], "import")
        self.assertEqual(tools.my_files.read_file()["tool"], "read_file")
        self.assertEqual(tools.my_files.read_file_(path="x")["tool"], "read.file")
        self.assertEqual(tools.my_files.read_file__()["tool"], "read-file")
        self.assertEqual(tools.upstream("my-files")["read.file"]("x")["path"], "x")
        self.assertEqual(tools.crm.search_contacts("x", from_="y")["from"], "y")
        self.assertEqual(tools.crm.search_contacts("x", **{"from": "y"})["from"], "y")

    def test_services_over_http_are_upstreams(self):
        for service in self.tools.weather, self.tools.http.weather:
            got = service.get("/v1/x", params={"city": "Ulm"})
            self.assertEqual(got, {"tool": "get", "path": "/v1/x", "params": {"city": "Ulm"}})
        self.assertEqual(self.tools.weather.post("/v1/x", json={"a": [1]})["json"], {"a": [1]})
        self.assertEqual(dir(self.tools.http), ["weather"])

    def test_several_items_are_a_list_and_none_is_none(self):
        text, file = self.tools.crm.several()
        self.assertEqual((text, os.fspath(file)), ("text", "/mnt/data/calls/a.png"))
        self.assertIsNone(self.tools.crm.nothing())
        for value in 1, "text", None, True, 1.5:
            self.assertEqual(self.tools.crm.echo(value), value)

    def test_values_of_libraries_are_sent_as_json(self):
        class Array:
            def tolist(self):
                return [1, float("nan")]

        sent = {"when": datetime.date(2026, 1, 2), "where": pathlib.Path("/x"), "of": (1, 2), "array": Array()}
        got = self.tools.crm.echo(value=sent)
        self.assertEqual(got, {"when": "2026-01-02", "where": "/x", "of": [1, 2], "array": [1, None]})
        with self.assertRaisesRegex(TypeError, "bytes b'x' cannot be sent"):
            self.tools.crm.echo(value=b"x")

    def test_a_run_after_another_connects_again(self):
        self.tools.crm.echo(value=1)
        self.broker.end_run()
        while self.broker.open:
            threading.Event().wait(0.001)
        self.assertEqual(self.tools.crm.echo(value=2), 2)
        self.assertEqual(self.broker.connections, 2)

    def test_pages_follow_the_cursor_of_the_answers(self):
        pages = [*self.tools.crm.listContacts.pages(pageSize=1)]
        self.assertEqual([page["contacts"][0]["id"] for page in pages], [0, 1, 2])
        self.assertEqual([*self.tools.crm.listContacts.pages({"pageSize": 1})], pages)
        with self.assertRaisesRegex(TypeError, "no argument for a cursor"):
            next(self.tools.crm.search_contacts.pages(query="x"))


class Checks(Case):
    def refused(self, kind, words, act):
        with self.assertRaisesRegex(kind, words):
            act()
        self.assertEqual(self.calls(), [])

    def test_arguments_are_checked_before_the_call(self):
        crm = self.tools.crm
        self.refused(TypeError, r"needs 'query': search_contacts\(query: str, \*, limit=20", lambda: crm.search_contacts())
        self.refused(TypeError, r"no argument 'qurey'; did you mean 'query'\?", lambda: crm.search_contacts(qurey="x"))
        self.refused(TypeError, r"takes 'limit' of type integer, not str '5'", lambda: crm.search_contacts("x", limit="5"))
        self.refused(TypeError, r"takes 'limit' of type integer, not bool", lambda: crm.search_contacts("x", limit=True))
        self.refused(ValueError, r"one of 'name', 'newest', not 'newst'; did you mean", lambda: crm.search_contacts("x", sort="newst"))
        self.refused(TypeError, r"by name: search-deals\(a=\.\.\., b=\.\.\.\)", lambda: crm.search_deals("x", 1))
        post = self.tools.weather.post
        wanted = r"post\(\) takes only 'path' without its name; write params=\.\.\. or headers=\.\.\. or json=\.\.\.$"
        self.refused(TypeError, wanted, lambda: post("/v1/x", {"a": 1}))
        self.refused(TypeError, r"twice", lambda: crm.search_contacts("x", query="y"))

    def test_none_stands_for_an_argument_that_is_not_given(self):
        self.assertNotIn("sort", self.tools.crm.search_contacts("x", sort=None, limit=None))
        self.assertIsNone(self.tools.crm.search_contacts("x", from_=None)["from"])

    def test_unknown_names_suggest_others(self):
        self.refused(self.tools.UnknownTool, "did you mean 'search_contacts'", lambda: self.tools.crm.serch_contacts("x"))
        self.refused(self.tools.UnknownUpstream, "there are: crm, my_files, weather, wiki", lambda: self.tools.salesforce.x())
        self.refused(TypeError, "call one of its tools", lambda: self.tools.crm("x"))

    def test_arguments_that_are_too_long_are_not_sent(self):
        self.refused(self.tools.LimitReached, "at most 1,000,000", lambda: self.tools.crm.echo("x" * 1_000_001))


class Errors(Case):
    def test_each_kind_of_error_has_a_class(self):
        kinds = """not_enabled unknown_upstream unknown_tool not_allowed invalid_arguments denied unanswered limit
            upstream unavailable cancelled unknown_outcome""".split()
        classes = set()
        for kind in kinds:
            with self.assertRaises(self.tools.ToolError) as caught:
                self.tools.crm.fail(kind=kind)
            error = caught.exception
            self.assertEqual((error.kind, error.upstream, error.tool), (kind, "crm", "fail"))
            self.assertIsInstance(error, RuntimeError)
            classes.add(type(error))
        self.assertEqual(len(classes), len(kinds))
        with self.assertRaises(self.tools.ToolError):
            self.tools.crm.fail(kind="of a newer server")

    def test_messages_say_who_said_what(self):
        with self.assertRaisesRegex(self.tools.UpstreamError, "^crm.fail: crm says: no such person$"):
            self.tools.crm.fail(kind="upstream", message="no such person")
        with self.assertRaisesRegex(self.tools.Denied, "^crm.fail: denied by Eva$"):
            self.tools.crm.fail(kind="denied", message="denied by Eva")

    def test_tracebacks_have_one_frame_of_the_module(self):
        for act in (
            lambda: self.tools.crm.fail(kind="upstream"),
            lambda: self.tools.crm.search_contacts(),
            lambda: self.tools.crm.missing(),
        ):
            try:
                act()
            except Exception as error:
                text = "".join(traceback.format_exception(error))
            self.assertEqual(text.count("tools.py"), 1, text)
            self.assertNotIn("During handling", text)

    def test_an_end_of_the_connection_is_an_error_and_not_a_second_call(self):
        with self.assertRaisesRegex(self.tools.Cancelled, "crm.hang_up: the connection was closed"):
            self.tools.crm.hang_up()
        self.assertEqual(len(self.calls()), 1)
        with self.assertRaisesRegex(self.tools.Unavailable, "not JSON"):
            self.tools.crm.garbage()

    def test_errors_can_be_pickled(self):
        try:
            self.tools.crm.fail(kind="denied")
        except self.tools.ToolError as error:
            copy = pickle.loads(pickle.dumps(error))
        self.assertIsInstance(copy, self.tools.Denied)
        self.assertEqual((copy.kind, copy.tool), ("denied", "fail"))

    def test_without_calls_the_module_says_so_when_it_is_used(self):
        code = "import tools\nprint(tools.crm, [n for n in dir(tools) if n[0] > 'Z'])\ntools.crm.x()"
        ended = self.in_new_process(code, SANDBOX_TOOLS="nobody-listens-here")
        self.assertIn("tools.NotEnabled: calls out of this sandbox are not enabled", ended.stderr)
        self.assertIn("`upstreams`", ended.stderr)
        self.assertNotIn("Refused", ended.stderr)
        self.assertIn("<upstream crm> ['aio', 'http', 'list', 'search', 'upstream']", ended.stdout)


class Parallel(Case):
    def test_threads_use_connections_of_their_own(self):
        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            values = [*pool.map(lambda number: self.tools.crm.echo(value=number), range(200))]
        self.assertEqual(values, [*range(200)])
        self.assertLessEqual(self.broker.connections, 8)

    def test_coroutines_call_side_by_side(self):
        async def all():
            calls = [self.tools.aio.crm.slow(seconds=0.05) for _ in range(4)]
            return await asyncio.gather(*calls, self.tools.crm.echo.aio(7), self.tools.aio.http.weather.get("/"))

        *_, seven, weather = asyncio.run(all())
        self.assertEqual((seven, weather["path"]), (7, "/"))
        self.assertGreater(self.broker.most, 1)

    def test_an_answer_that_is_awaited_is_itself(self):
        async def call():
            self.assertEqual(len(await self.tools.search("contacts")), 1)
            return await self.tools.crm.search_contacts("x", limit=1)

        self.assertEqual(asyncio.run(call())["total"], 100)

    def test_a_cancelled_coroutine_cancels_its_call(self):
        async def call():
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.tools.aio.crm.slow(seconds=0.2), 0.02)

        self.tools.crm.echo(1)
        ended = self.broker.ended
        asyncio.run(call())
        while self.broker.ended == ended:
            threading.Event().wait(0.001)

    def test_a_child_process_has_its_own_connection(self):
        self.tools.crm.echo(value=0)
        (ours,) = self.tools._connections.idle
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(writer, json.dumps(self.tools.crm.counted()["connections"]).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        self.assertEqual(os.read(reader, 100), b"2")
        self.assertEqual(self.tools.crm.counted()["connections"], 2)
        self.assertIs(self.tools._connections.idle[0], ours)

    def test_a_fork_beside_calls_of_other_threads_can_call(self):
        threads = [threading.Thread(target=self.tools.crm.slow, args=(0.3,)) for _ in range(8)]
        self.tools.crm.echo(1)
        for thread in threads:
            thread.start()
        while self.broker.now < 8:
            threading.Event().wait(0.001)
        with multiprocessing.get_context("fork").Pool(2) as pool:
            self.assertEqual(pool.map(self.tools.crm.echo, [1, 2, 3]), [1, 2, 3])
        for thread in threads:
            thread.join()


class Discovery(Case):
    def test_search_returns_a_line_for_each_tool(self):
        found = self.tools.search("contacts")
        self.assertEqual(found[0]["upstream"], "crm")
        line = "tools.crm.search_contacts(query: str, *, limit=20, sort: 'name'|'newest'=…, from_: str=…)  Finds contacts."
        self.assertEqual((repr(found), repr(found[0])), (line, line))
        self.assertEqual(repr(self.tools.search("zebra")), "nothing found")

    def test_a_call_after_a_search_asks_for_no_list_again(self):
        self.tools.search("contacts")
        self.tools.crm.search_contacts("x")
        self.assertEqual([request["op"] for request in self.broker.requests], ["search", "tools", "list", "call"])

    def test_lines_are_cut_after_a_word_and_after_some_arguments(self):
        (line,) = repr(self.tools.search("import")).splitlines()
        start, _, description = line.partition(")  ")
        self.assertIn("import_(data, *, option_0: list[str]=…, option_1: list[str]=…", start)
        self.assertTrue(start.endswith("=…, …"), start)
        self.assertRegex(description, "^Imports records .* (kinds|several|of)…$")
        self.assertLess(len(description), 102)

    def test_list_has_upstreams_and_their_tools(self):
        self.assertEqual(repr(self.tools.list()).splitlines()[0], "tools.crm (15 tools)  Customers")
        self.assertIn("tools.wiki [unavailable: wiki: its process has ended]  Pages", repr(self.tools.list()).splitlines())
        lines = repr(self.tools.list("crm")).splitlines()
        self.assertEqual(lines[0], repr(self.tools.search("contacts")))
        self.assertIn("tools.crm.delete_all() [a person is asked]", lines)
        self.assertIn("tools.crm.secret() [not allowed]", lines)
        self.assertEqual(len(self.tools.list("my_files")), 3)

    def test_dir_lists_names_that_can_be_used(self):
        self.assertLessEqual({"crm", "my_files", "weather", "search", "list", "ToolError"}, set(dir(self.tools)))
        self.assertIn("search_deals", dir(self.tools.crm))
        self.assertIn("import_", dir(self.tools.crm))
        self.assertNotIn("json", dir(self.tools))

    def test_help_shows_signature_description_and_arguments(self):
        text = io.StringIO()
        pydoc.Helper(output=text).help(self.tools.crm.search_contacts)
        text = text.getvalue()
        self.assertRegex(text, r"search_contacts\(query: str, \*, limit: int = 20, sort: .*Literal\['name', 'newest'\] = None")
        for line in (
            "Finds contacts.", "Best first.", "query (string, required): words of the name", "limit (integer)",
            "sort (string): one of 'name', 'newest'.", "from_ (string or null)",
        ):  # fmt: skip
            self.assertIn(line, text)
        text = io.StringIO()
        pydoc.Helper(output=text).help(self.tools.crm)
        self.assertIn("Customers", text.getvalue())
        self.assertIn("tools.crm.search_deals(*, a: str, b: int)", text.getvalue())

    def test_help_on_the_module_fits_on_a_screen(self):
        text = io.StringIO()
        pydoc.Helper(output=text).help(self.tools)
        lines = text.getvalue().splitlines()
        self.assertLess(len(lines), 31, text.getvalue())
        self.assertIn("tools.search", text.getvalue())

    def test_signatures_can_be_inspected(self):
        signature = inspect.signature(self.tools.crm.search_contacts)
        self.assertEqual([*signature.parameters], ["query", "limit", "sort", "from_"])
        self.assertIs(signature.parameters["query"].annotation, str)
        self.assertEqual(self.tools.crm.search_contacts.__name__, "search_contacts")

    def test_looking_for_a_name_asks_nobody(self):
        self.tools.crm.search_contacts
        self.assertFalse(hasattr(self.tools, "__path__"))
        self.assertFalse(hasattr(self.tools.crm, "_repr_html_"))
        repr(self.tools.crm.search_contacts)
        self.assertEqual(self.broker.requests, [])


class Values(Case):
    def setUp(self):
        super().setUp()
        # Only what the module uses of it.
        pandas = types.ModuleType("pandas")
        pandas.DataFrame = Frame
        pandas.read_csv = lambda path, sep=",", **more: ("csv", os.fspath(path), sep, more)
        pandas.read_json = lambda path, lines=False, **more: ("json", lines)
        pandas.read_excel = lambda path, **more: ("excel",)
        pandas.read_parquet = lambda path, **more: ("parquet",)
        self.before = sys.modules.get("pandas")
        sys.modules["pandas"] = pandas
        self.folder = tempfile.TemporaryDirectory()

    def tearDown(self):
        super().tearDown()
        self.folder.cleanup()
        if self.before is None:
            del sys.modules["pandas"]
        else:
            sys.modules["pandas"] = self.before

    def file(self, name, content, mime_type):
        path = os.path.join(self.folder.name, name)
        with open(path, "w") as file:
            file.write(content)
        return self.tools.crm.file(path=path, mime_type=mime_type)

    def test_records_become_tables(self):
        tools = self.tools
        self.assertEqual(tools.crm.search_contacts("x", limit=1).to_frame(), [{"id": 0, "name": "x 0"}])
        self.assertEqual(tools.crm.echo([{"a": 1}, {"a": 2}]).to_frame(), [{"a": 1}, {"a": 2}])
        self.assertEqual(tools.crm.echo([1, 2]).to_frame(), [{"value": 1}, {"value": 2}])
        two = tools.crm.echo({"a": [{"x": 1}], "b": [{"y": 1}]})
        self.assertEqual(two.to_frame("b"), [{"y": 1}])
        with self.assertRaisesRegex(ValueError, r"several, choose one with to_frame\('a'\)"):
            two.to_frame()

    def test_files_are_paths_with_contents(self):
        file = self.file("a.csv", "a,b\n1,2\n", "text/csv")
        self.assertEqual(file.read_text(), "a,b\n1,2\n")
        self.assertEqual(file.read_bytes(), b"a,b\n1,2\n")
        with open(file) as same:
            self.assertEqual(same.readline(), "a,b\n")
        self.assertEqual(repr(file), f"File({file.path!r}, text/csv, 8 bytes)")
        self.assertEqual(file.to_frame(nrows=3), ("csv", file.path, ",", {"nrows": 3}))
        self.assertEqual(self.file("a.tsv", "", "text/plain").to_frame()[2], "\t")
        self.assertEqual(self.file("a.json", '{"rows": [{"a": 1}]}', "application/json").to_frame(), [{"a": 1}])
        self.assertEqual(self.file("a.jsonl", "", "text/plain").to_frame(), ("json", True))
        with self.assertRaisesRegex(ValueError, "no table that is known"):
            self.file("a.png", "", "image/png").to_frame()

    def test_values_of_variables_can_be_pickled(self):
        tools = self.tools
        file = self.file("a.csv", "a\n", "text/csv")
        values = [tools.crm, tools.aio.crm, tools.http, tools.crm["search-deals"], tools.search("contacts"), file]
        values += [tools.crm.search_contacts("x"), tools.crm.echo([1])]
        for value in values:
            copy = pickle.loads(pickle.dumps(value))
            self.assertEqual(repr(copy) if type(copy) is not type(tools.http) else dir(copy), repr(value) if type(value) is not type(tools.http) else dir(value))
            self.assertIs(type(copy), type(value))

    def test_the_module_is_saved_as_an_import(self):
        self.assertIs(type(self.tools), types.ModuleType)
        self.assertEqual(self.tools.__name__, "tools")


class Import(Case):
    def test_the_import_loads_nothing_slow(self):
        code = "import sys, json, threading, re, os\nbefore = set(sys.modules)\nimport tools\nprint(sorted(set(sys.modules) - before))"
        self.assertEqual(self.in_new_process(code).stdout, "['tools']\n")

    def test_the_embedded_engines_file_is_one_call_for_each_open(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "tools")
            answer = json.dumps({"value": [{"name": "crm", "tools": 1, "description": ""}]})
            # A plain file: the answer follows what is written.
            request = json.dumps({"op": "list"}, separators=(",", ":"))
            with open(path, "w") as file:
                file.write(" " * len(request) + answer)
            del os.environ["SANDBOX_TOOLS"]
            self.tools._FILE = path
            self.assertEqual(self.tools.list()[0]["name"], "crm")
            with open(path) as file:
                self.assertEqual(file.read(), request + answer)
            self.tools._FILE, self.tools._SOCKET = os.path.join(folder, "missing"), "nobody-listens-here"
            with self.assertRaises(self.tools.NotEnabled):
                self.tools.list()


if __name__ == "__main__":
    unittest.main()
