"""Calls the tools that the operator of this sandbox has connected. There is no network here: the server makes each call.

    tools.search("contacts")                       which tools there are for something
    tools.list(), tools.list("crm")                all upstreams; the tools of one
    help(tools.crm.search_contacts)                what a tool does and takes
    tools.crm.search_contacts(query="x")           a call; the value is the answer
    await tools.aio.crm.search_contacts(query="x") the same in a coroutine; several at once with asyncio.gather()
    tools.crm.list_contacts.pages()                an iterator over the pages of a long answer
    tools.weather.get("/v1/today", params={...})   a service over HTTP, also as tools.http.weather
    tools.crm["search-contacts"]                   a tool by its own name

An answer that is a list of records, or has one, is a table with `.to_frame()`. An image, or a large answer, is a file
(`tools.File`). An error is a `tools.ToolError`, of which `kind` says why, and a subclass such as `tools.Denied`.
"""

import builtins as _builtins
import json as _json
import os as _os
import re as _re
import threading as _threading

# Without `list`, which would replace Python's own, and without classes, of which `help` would show all members.
__all__ = ["search", "upstream"]

# Maximum length of a request and of an answer, in bytes, and number of calls at the same time.
_MAX_BYTES, _MAX_PARALLEL = 1_000_000, 8

# Maximum length of a description in a list, in characters, and number of arguments and of choices there.
_MAX_LINE, _MAX_ARGUMENTS, _MAX_CHOICES = 100, 8, 5

# The socket of the agent if the environment names none, and the file of the embedded engine.
_SOCKET, _FILE = "llm-sandbox-tools", "/dev/tools"

_NOT_ENABLED = "calls out of this sandbox are not enabled: its operator has connected no tools (setting `upstreams`)"


# --- errors ---------------------------------------------------------------------------------------------------


class ToolError(RuntimeError):
    """A call that failed. `kind` says why in one word, `upstream` and `tool` which call it was."""

    kind = "error"

    def __init__(self, message="", kind=None, upstream=None, tool=None):
        super().__init__(message)
        self.kind, self.upstream, self.tool = kind or self.kind, upstream, tool

    def __reduce__(self):
        return type(self), (str(self), self.kind, self.upstream, self.tool)


def _error(name, kind, doc, *more):
    made = type(name, (ToolError, *more), {"kind": kind, "__doc__": doc, "__module__": __name__})
    globals()[name] = _ERRORS[kind] = made


_ERRORS = {}
_error("NotEnabled", "not_enabled", "Nobody has connected tools to this sandbox.")
_error("UnknownUpstream", "unknown_upstream", "There is no upstream of this name.", AttributeError)
_error("UnknownTool", "unknown_tool", "The upstream has no tool of this name.", AttributeError)
_error("NotAllowed", "not_allowed", "The operator does not allow this call.")
_error("InvalidArguments", "invalid_arguments", "The arguments do not fit the tool's schema.", ValueError)
_error("Denied", "denied", "A person was asked and has denied the call.")
_error("Unanswered", "unanswered", "A person was asked and has not decided in time.")
_error("LimitReached", "limit", "There were too many calls, or too many bytes.")
_error("UpstreamError", "upstream", "The tool itself reports an error.")
_error("Unavailable", "unavailable", "The upstream cannot be reached, or answers nothing sensible.")
_error("Cancelled", "cancelled", "The call was cancelled before its answer came.")
_error("UnknownOutcome", "unknown_outcome", "The call may have been made; its answer is lost.")


def _failure(error, upstream, tool):
    """Returns the exception for the error of an answer. Its message says who said what."""
    kind, message = str(error.get("kind", "error")), str(error.get("message", ""))
    whose = ".".join(filter(None, (upstream, tool)))
    if kind == "upstream":
        message = f"{upstream} says: {message}"
    if whose:
        message = f"{whose}: {message}"
    return _ERRORS.get(kind, ToolError)(message, kind, upstream, tool)


# --- the way to the server ------------------------------------------------------------------------------------


class _Connections:
    """Connections to the agent. Each carries one call at a time; those that are not in use wait here for the next."""

    def __init__(self):
        self.start()
        if hasattr(_os, "register_at_fork"):
            _os.register_at_fork(after_in_child=self.forked)

    def start(self):
        self.idle, self.room = [], _threading.BoundedSemaphore(_MAX_PARALLEL)

    def forked(self):
        # The connections are the parent's: an answer would go to either process.
        for connection in self.idle:
            connection.close()
        self.start()

    def ask(self, request, canceller=None):
        """Sends a request and returns the answer, both as bytes."""
        with self.room:
            if "SANDBOX_TOOLS" not in _os.environ and (answer := _ask_file(request)) is not None:
                return answer
            connection = self.take()
            if canceller is not None:
                canceller.connection = connection
            try:
                connection.sendall(len(request).to_bytes(4, "little") + request)
                length = int.from_bytes(_receive(connection, 4), "little")
                if length > _MAX_BYTES:
                    raise Unavailable(f"an answer of {length:,} bytes is longer than {_MAX_BYTES:,}")
                answer = _receive(connection, length)
            except OSError:
                connection.close()
                raise _lost() from None
            except BaseException:
                # The end of the connection cancels the call.
                connection.close()
                raise
            if canceller is not None:
                canceller.connection = None
            self.idle.append(connection)
            return answer

    def take(self):
        """Returns a connection that has not been closed: the agent closes all at the end of a run."""
        import socket

        while True:
            try:
                connection = self.idle.pop()
            except IndexError:
                break
            try:
                connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            except BlockingIOError:
                return connection
            except OSError:
                pass
            connection.close()
        if not hasattr(socket, "AF_UNIX"):
            raise NotEnabled(_NOT_ENABLED)
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect("\0" + _os.environ.get("SANDBOX_TOOLS", _SOCKET))
        except OSError:
            connection.close()
            raise NotEnabled(_NOT_ENABLED) from None
        return connection


def _lost():
    return Cancelled("the connection was closed before the answer came; the call may have been made")


def _receive(connection, length):
    received = bytearray()
    while len(received) < length:
        chunk = connection.recv(length - len(received))
        if not chunk:
            raise _lost()
        received += chunk
    return received


def _ask_file(request):
    """Sends a request through the file of the embedded engine, where each open is one call. None without that file."""
    try:
        file = _os.open(_FILE, _os.O_RDWR)
    except OSError:
        return None
    try:
        while request:
            request = request[_os.write(file, request) :]
        return b"".join(iter(lambda: _os.read(file, 1 << 16), b""))
    except OSError:
        raise _lost() from None
    finally:
        _os.close(file)


_connections = _Connections()


def _ask(request, canceller=None):
    """Returns the server's answer to a request, or raises the error that it is."""
    upstream, tool = request.get("upstream"), request.get("tool")
    packed = _json.dumps(request, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
    if len(packed) > _MAX_BYTES:
        message = f"the arguments have {len(packed):,} bytes, and a call takes at most {_MAX_BYTES:,}"
        raise _failure({"kind": "limit", "message": message}, upstream, tool)
    try:
        answer = _json.loads(_connections.ask(packed, canceller))
    except ToolError as error:
        raise _failure({"kind": error.kind, "message": str(error)}, upstream, tool) from None
    except ValueError:
        raise _failure({"kind": "unavailable", "message": "the answer is not JSON"}, upstream, tool) from None
    if "error" in answer:
        raise _failure(answer["error"], upstream, tool)
    return answer


# --- names and lists ------------------------------------------------------------------------------------------

# Lists that the server has sent: the upstreams, and the tools of each by their names.
_known = {}


def _identifier(name):
    """Returns the Python name for a name."""
    import keyword

    made = _re.sub(r"\W", "_", name) or "_"
    if made[0].isdigit():
        made = "_" + made
    return made + "_" if keyword.iskeyword(made) else made


def _by_identifier(names):
    """Maps Python names to names. A name that is one itself has it; of others, the first."""
    mapped = {name: name for name in names if _identifier(name) == name}
    for name in names:
        made = _identifier(name)
        while mapped.setdefault(made, name) != name:
            made += "_"
    return mapped


def _like(name, names):
    """Returns the end of a message about a name that does not exist."""
    import difflib

    near = difflib.get_close_matches(name, names, 1, 0.6)
    if near:
        return f"; did you mean {near[0]!r}?"
    shown = ", ".join(sorted(names)[:30]) + (", ..." if len(names) > 30 else "")
    return f"; there are: {shown}" if names else ""


def _found(name, fetch, key):
    """Returns the entry of this name, or Python name, from a list of the server; the list is fetched again if it does
    not have it. Returns the Python names if there is none."""
    for entries in (_known.get(key), None):
        if entries is None:
            entries = _known[key] = {entry["name"]: entry for entry in fetch()}
        names = _by_identifier(entries)
        if (own := name if name in entries else names.get(name)) is not None:
            return entries[own], None
    return None, names


def _upstreams():
    """Returns the upstreams without the numbers of their tools, for which the server would have to ask each of them."""
    return _ask({"op": "list", "brief": True})["value"]


def _entry_of(name):
    entry, names = _found(name, _upstreams, "")
    if entry is None:
        raise UnknownUpstream(f"there is no upstream {name!r}{_like(name, names)}", upstream=name)
    return entry


def _tools_of(upstream):
    return _ask({"op": "tools", "upstream": upstream})["value"]


class _Answer:
    """An answer that has come; `await` returns it as it is."""

    def __await__(self):
        return self
        yield


class _Entry(dict):
    """A record of a list, which is shown as a line."""

    def __repr__(self):
        name = _identifier(self["name"])
        if "upstream" in self:
            name = f"{_identifier(self['upstream'])}.{name}"
        if "input_schema" in self:
            name += _Stub(self).usage()
        if "tools" in self:
            name += f" ({self['tools']} tools)"
        if "unavailable" in self:
            name += f" [unavailable: {_cut(self['unavailable'])}]"
        elif self.get("rights") == "ask":
            name += " [a person is asked]"
        elif self.get("rights") == "denied":
            name += " [not allowed]"
        return f"tools.{name}  {_cut(self.get('description') or '')}".rstrip()


class _Lines(_builtins.list, _Answer):
    """A list of records that is shown as one line for each."""

    def __init__(self, entries=()):
        super().__init__(map(_Entry, entries))

    def __repr__(self):
        return "\n".join(map(repr, self)) or "nothing found"


def _cut(text):
    """Returns the first line of a text; of a long one the first words."""
    line = text.strip().partition("\n")[0].strip()
    if len(line) <= _MAX_LINE:
        return line
    words = line[: _MAX_LINE + 1].rpartition(" ")[0] or line[:_MAX_LINE]
    return words.rstrip(" ,;:.") + "…"


def search(query, limit=20):
    """Returns the tools that have to do with something, best first."""
    found = _ask({"op": "search", "query": str(query), "limit": limit})["value"]
    # The arguments of a tool are in the list of its upstream, which a call needs as well.
    for upstream in dict.fromkeys(entry["upstream"] for entry in found):
        if upstream not in _known:
            try:
                _known[upstream] = {entry["name"]: entry for entry in _tools_of(upstream)}
            except ToolError:
                pass
    return _Lines({**entry, **_known.get(entry["upstream"], {}).get(entry["name"], {})} for entry in found)


def list(upstream=None):
    """Returns the upstreams, or the tools of one."""
    if upstream is None:
        return _Lines(_ask({"op": "list"})["value"])
    name = _entry_of(str(upstream))["name"]
    return _Lines({"upstream": name, **entry} for entry in _tools_of(name))


# --- what a tool takes ----------------------------------------------------------------------------------------

# The Python types of the types of JSON.
_TYPES = {
    "string": str, "integer": int, "number": float, "boolean": bool, "array": _builtins.list, "object": dict,
    "null": type(None),
}  # fmt: skip


def _alternatives(schema):
    """Returns the schemas of which a value must fit one; None if that is more than can be checked here."""
    if not isinstance(schema, dict) or "$ref" in schema or "allOf" in schema:
        return None
    if several := schema.get("anyOf") or schema.get("oneOf"):
        found = [_alternatives(one) for one in several]
        return None if None in found else [one for some in found for one in some]
    if isinstance(schema.get("type"), _builtins.list):
        return [{**schema, "type": one} for one in schema["type"]]
    return [schema] if "type" in schema or "enum" in schema or "const" in schema else None


def _fits_type(value, kind):
    if kind in ("integer", "number") and isinstance(value, bool):
        return False
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, (int, float) if kind == "number" else _TYPES.get(kind, object))


def _annotation(schema):
    import typing

    kinds = []
    for one in _alternatives(schema) or [{}]:
        if one.get("enum"):
            kinds.append(typing.Literal[tuple(one["enum"])])
        else:
            kinds.append(_TYPES.get(one.get("type"), typing.Any))
    return typing.Union[tuple(kinds)]


def _type_name(schema):
    """Returns the Python type of a schema's values as short text; empty if it is not known."""
    kinds = []
    for one in _alternatives(schema) or ():
        choices = one.get("enum") or ()
        if 0 < len(choices) <= _MAX_CHOICES:
            kinds += map(repr, choices)
            continue
        kind = getattr(_TYPES.get(one.get("type")), "__name__", "").replace("NoneType", "None")
        items = _type_name(one.get("items")) if kind == "list" else ""
        kinds.append(f"list[{items}]" if items else kind)
    return "|".join(dict.fromkeys(kinds)) if all(kinds) else ""


def _plain(value):
    """Returns a value as JSON has it: of the libraries' types those that mean the same."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else None  # JSON has no NaN, which stands for a missing value
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (_builtins.list, tuple, set, frozenset)):
        return [_plain(part) for part in value]
    if hasattr(value, "isoformat"):
        return value.isoformat() if value == value else None
    if isinstance(value, _os.PathLike):
        return _os.fspath(value)
    if hasattr(value, "iterrows"):
        return _plain(value.to_dict("records"))
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if type(value).__name__ in ("Decimal", "UUID"):
        return str(value)
    raise TypeError(f"{type(value).__name__} {value!r:.60} cannot be sent: pass text, numbers, lists or dicts")


class _Stub:
    """What a tool takes, from its schema."""

    def __init__(self, entry):
        self.name = entry["name"]
        schema = entry.get("input_schema") or {}
        self.properties = schema.get("properties") or {}
        required = [name for name in schema.get("required") or () if name in self.properties]
        self.required = required
        self.names = _by_identifier([*required, *(name for name in self.properties if name not in required)])
        more = schema.get("additionalProperties")
        self.is_open = bool(more) or not self.properties and more is not False
        self.first = required[0] if len(required) == 1 else None
        if not required and len(self.properties) == 1:
            self.first = next(iter(self.properties))

    def parameters(self):
        """Returns Python name, own name, schema and whether it is required of each argument, in the order of signatures."""
        mapped = {own: name for name, own in self.names.items()}
        first = [self.first] if self.first else []
        for own in dict.fromkeys([*first, *self.required, *self.properties]):
            schema = self.properties[own] if isinstance(self.properties[own], dict) else {}
            yield mapped[own], own, schema, own in self.required

    def signature(self):
        from inspect import Parameter, Signature

        parameters = []
        for name, own, schema, is_required in self.parameters():
            kind = Parameter.POSITIONAL_OR_KEYWORD if own == self.first else Parameter.KEYWORD_ONLY
            default = Parameter.empty if is_required else schema.get("default")
            parameters.append(Parameter(name, kind, default=default, annotation=_annotation(schema)))
        if self.is_open:
            parameters.append(Parameter("more", Parameter.VAR_KEYWORD))
        return Signature(parameters)

    def usage(self):
        """Returns the signature as short text, without the last of many optional arguments."""
        shown = []
        for name, own, schema, is_required in self.parameters():
            if len(shown) >= _MAX_ARGUMENTS and not is_required:
                shown.append("…")
                break
            if len(shown) == (self.first is not None):
                shown.append("*")
            kind, default = _type_name(schema), schema.get("default")
            if isinstance(default, (str, int, float)) and len(repr(default)) <= 20:
                shown.append(f"{name}={default!r}")
            else:
                # Each optional argument can be None.
                kind = kind if is_required else kind.removesuffix("|None")
                shown.append(name + (f": {kind}" if kind else "") + ("" if is_required else "=…"))
        if self.is_open and self.properties:
            shown.append("**more")
        return f"({', '.join(shown)})"

    def arguments(self, positional, named):
        """Returns the arguments of a call as JSON, or raises the error that Python would."""
        call = f"{self.name}()"
        if len(positional) > 1 or positional and self.first is None and not self.is_a_mapping(positional[0]):
            raise TypeError(f"{call} {self.by_name(positional)}")
        given = {}
        if positional:
            (first,) = positional
            if self.is_a_mapping(first):
                given.update(first)
            elif _identifier(self.first) in named or self.first in named:
                raise TypeError(f"{call} got {self.first!r} twice: by its place and by its name")
            else:
                given[self.first] = first
        given.update(named)
        arguments = {}
        for name, value in given.items():
            own = name if name in self.properties else self.names.get(name)
            if own is None and not self.is_open:
                raise TypeError(f"{call} has no argument {name!r}{_like(name, self.names)}")
            own = own or name
            value, schema = _plain(value), self.properties.get(own)
            # None is the default of the signature, where the schema has none.
            if value is None and own not in self.required and not self.allows(None, schema):
                continue
            self.check(call, name, value, schema)
            arguments[own] = value
        if missing := [name for name in self.required if name not in arguments]:
            raise TypeError(f"{call} needs {' and '.join(map(repr, missing))}: {self.name}{self.usage()}")
        return arguments

    def by_name(self, positional):
        """Returns the end of the message that arguments need their names, with names that the first of them can have."""
        if self.first is None:
            wanted = ", ".join(f"{_identifier(name)}=..." for name in self.required or self.properties)
            return f"takes its arguments by name: {self.name}({wanted})"
        others = [(name, schema) for name, own, schema, _ in self.parameters() if own != self.first]
        fitting = [name for name, schema in others if self.allows(positional[1], schema)] or [name for name, _ in others]
        names = " or ".join(f"{name}=..." for name in fitting)
        return f"takes only {self.first!r} without its name" + (f"; write {names}" if names else "")

    def is_a_mapping(self, value):
        """Whether the only argument of a call is a dict with all arguments."""
        if not isinstance(value, dict):
            return False
        schema = self.properties.get(self.first)
        is_the_first = self.first is not None and self.allows({}, schema)
        return not is_the_first and (self.is_open or all(name in self.properties for name in value))

    @staticmethod
    def allows(value, schema):
        known = _alternatives(schema)
        return known is None or any("type" not in one or _fits_type(value, one["type"]) for one in known)

    @staticmethod
    def check(call, name, value, schema):
        known = _alternatives(schema)
        if known is None:
            return
        fitting = [one for one in known if "type" not in one or _fits_type(value, one["type"])]
        if not fitting:
            kinds = " or ".join(dict.fromkeys(str(one["type"]) for one in known))
            raise TypeError(f"{call} takes {name!r} of type {kinds}, not {type(value).__name__} {value!r:.60}")
        enums = [one.get("enum") or ([one["const"]] if "const" in one else None) for one in fitting]
        if None not in enums and not any(value in enum for enum in enums):
            choices = [choice for enum in enums for choice in enum]
            near = _like(value, [str(choice) for choice in choices]) if isinstance(value, str) else ""
            near = near if near.startswith("; did") else ""
            shown = ", ".join(map(repr, choices[:30]))
            raise ValueError(f"{call} takes {name!r} as one of {shown}, not {value!r:.60}{near}")


# --- answers --------------------------------------------------------------------------------------------------


class Record(dict, _Answer):
    """An answer that is a JSON object: a dict."""

    def to_frame(self, key=None):
        """Returns the list of records below this key as a DataFrame; without a key the only one that there is."""
        keys = [name for name, value in self.items() if _is_table(value)]
        if key is None:
            if len(keys) != 1:
                found = f"several, choose one with to_frame({keys[0]!r})" if keys else "none"
                raise ValueError(f"of the keys {', '.join(self)[:200]}, one must have a list of records; there is {found}")
            (key,) = keys
        return Records(self[key]).to_frame()


class Records(_builtins.list, _Answer):
    """An answer that is a JSON array: a list."""

    def to_frame(self):
        """Returns the records as a DataFrame."""
        import pandas

        rows = [row if isinstance(row, dict) else {"value": row} for row in self]
        return pandas.DataFrame(rows)


def _is_table(value):
    return isinstance(value, _builtins.list) and len(value) > 0 and all(isinstance(row, dict) for row in value)


class File(_os.PathLike, _Answer):
    """An answer that is a file, such as an image or one that is too long: its path, MIME type and number of bytes."""

    def __init__(self, path, mime_type=None, bytes=None):
        self.path, self.mime_type, self.bytes = path, mime_type, bytes

    @property
    def name(self):
        return _os.path.basename(self.path)

    def __fspath__(self):
        return self.path

    __str__ = __fspath__

    def __repr__(self):
        return f"File({self.path!r}, {self.mime_type}, {self.bytes} bytes)"

    def read_bytes(self):
        with open(self.path, "rb") as file:
            return file.read()

    def read_text(self, encoding="utf-8", errors="strict"):
        with open(self.path, encoding=encoding, errors=errors) as file:
            return file.read()

    def read_json(self):
        """Returns the file's content as the answer that it would have been if it were shorter."""
        return _answer_of(_json.loads(self.read_text()))

    def to_frame(self, **options):
        """Returns the file as a DataFrame; the options are those of pandas."""
        import pandas

        kind = f"{self.mime_type or ''} {self.name.lower()}"
        for words, read in (
            (r"parquet", pandas.read_parquet),
            (r"spreadsheet|excel|\.xls", pandas.read_excel),
            (r"ndjson|jsonl|json-?lines", lambda path, **more: pandas.read_json(path, lines=True, **more)),
            (r"tab-separated|\.tsv", lambda path, **more: pandas.read_csv(path, **{"sep": "\t", **more})),
            (r"csv", pandas.read_csv),
        ):
            if _re.search(words, kind):
                return read(self.path, **options)
        if "json" in kind:
            return self.read_json().to_frame(**options)
        raise ValueError(f"{self!r} is no table that is known: read it with pandas")


def _answer_of(value):
    """Returns a value of JSON with the methods of an answer."""
    return Record(value) if isinstance(value, dict) else Records(value) if isinstance(value, _builtins.list) else value


def _item(item):
    return File(**item["file"]) if "file" in item else _answer_of(item.get("value"))


# --- upstreams and tools --------------------------------------------------------------------------------------

# The key of a result that has the cursor of the next page, and the argument that takes it.
_NEXT = r"(?i)next_?(cursor|page_?token|token|page)?"
_CURSOR = r"(?i)(next_?)?(cursor|page_?token|token|page)|starting_?after|after"


class _Canceller:
    """Cancels a call of another thread, by the end of its connection."""

    connection = None

    def cancel(self):
        if connection := self.connection:
            import socket

            connection.shutdown(socket.SHUT_RDWR)


class _Tool:
    """A tool of an upstream. Nothing is asked until it is called, or documented."""

    def __init__(self, upstream, name, is_async=False):
        self._upstream, self._name, self._is_async = upstream, name, is_async
        self.__name__ = _identifier(name)
        self.__qualname__ = f"tools.{_identifier(upstream)}.{self.__name__}"

    def __get__(self, instance, owner=None):
        # `help` shows what has this method as it shows functions.
        return self

    def __reduce__(self):
        return _Tool, (self._upstream, self._name, self._is_async)

    def __repr__(self):
        return f"<tool {self.__qualname__}>"

    @property
    def __signature__(self):
        return _Stub(self._entry()).signature()

    @property
    def __doc__(self):
        entry = self._entry()
        stub = _Stub(entry)
        lines = [(entry.get("description") or "").strip()]
        if entry.get("rights") == "ask":
            lines += ["", "A person is asked before each call."]
        elif entry.get("rights") == "denied":
            lines += ["", "The operator does not allow calls of this tool."]
        if stub.names:
            lines += ["", "Arguments:"]
        for name, own in stub.names.items():
            schema = stub.properties[own] if isinstance(stub.properties[own], dict) else {}
            kind = " or ".join(str(one.get("type", "value")) for one in _alternatives(schema) or [{}])
            text = " ".join(str(schema.get("description") or "").split())
            choices = f" one of {', '.join(map(repr, schema['enum'][:30]))}." if schema.get("enum") else ""
            needed = ", required" if own in stub.required else ""
            lines.append(f"    {name} ({kind}{needed}):{choices} {text}".rstrip().removesuffix(":"))
        return "\n".join(lines).strip()

    def _entry(self):
        upstream = _entry_of(self._upstream)["name"]
        entry, names = _found(self._name, lambda: _tools_of(upstream), upstream)
        if entry is None:
            message = f"{upstream} has no tool {self._name!r}{_like(self._name, names)}"
            raise UnknownTool(message, upstream=upstream, tool=self._name)
        return entry

    def _call(self, positional, named, canceller=None):
        entry, upstream = self._entry(), _entry_of(self._upstream)["name"]
        arguments = _Stub(entry).arguments(positional, named)
        request = {"op": "call", "upstream": upstream, "tool": entry["name"], "arguments": arguments}
        try:
            items = _ask(request, canceller).get("items") or []
        except (UnknownTool, UnknownUpstream, InvalidArguments):
            _known.clear()  # the upstream may have changed
            raise
        return _item(items[0]) if len(items) == 1 else Records(map(_item, items)) if items else None

    def __call__(self, *positional, **named):
        if self._is_async:
            return self.aio(*positional, **named)
        try:
            return self._call(positional, named)
        except (ToolError, TypeError, ValueError) as error:
            failed = error
        raise failed.with_traceback(None) from None

    async def aio(self, *positional, **named):
        """Calls the tool in a coroutine."""
        import asyncio

        canceller = _Canceller()
        try:
            return await asyncio.to_thread(self._call, positional, named, canceller)
        except asyncio.CancelledError:
            canceller.cancel()
            raise
        except (ToolError, TypeError, ValueError) as error:
            failed = error
        raise failed.with_traceback(None) from None

    def pages(self, *positional, **named):
        """Calls the tool for one page after another, as long as an answer names a next one. Yields the answers."""
        stub = _Stub(self._entry())
        own = next((own for name, own in stub.names.items() if _re.fullmatch(_CURSOR, name)), None)
        if own is None:
            raise TypeError(f"{self.__name__}() has no argument for a cursor: its answer has no further pages")
        tool, seen = _Tool(self._upstream, self._name), set()
        named = stub.arguments(positional, named)
        while True:
            page = tool(**named)
            yield page
            found = page.items() if isinstance(page, dict) else ()
            cursors = [value for key, value in found if _re.fullmatch(_NEXT, key)]
            cursor = next((value for value in cursors if isinstance(value, (str, int)) and value), None)
            if cursor is None or cursor in seen:
                return
            seen.add(cursor)
            named[own] = cursor


class _Upstream:
    """The tools of an upstream, as attributes by their Python names, and as items by their own names."""

    __slots__ = "_name", "_is_async"

    def __init__(self, name, is_async=False):
        self._name, self._is_async = name, is_async

    def __getattr__(self, name):
        # Names by which Python and libraries look for abilities. They are not tools.
        if _re.match(r"_(?!\d)", name):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name):
        return _Tool(self._name, str(name), self._is_async)

    def __call__(self, *_, **__):
        raise TypeError(f"{self._name} is an upstream; call one of its tools, see tools.list({self._name!r})")

    def __dir__(self):
        return sorted(_by_identifier([entry["name"] for entry in list(self._name)]))

    def __reduce__(self):
        return _Upstream, (self._name, self._is_async)

    def __repr__(self):
        return f"<upstream {self._name}>"

    @property
    def __doc__(self):
        entry = _entry_of(self._name)
        return f"{(entry.get('description') or '').strip()}\n\n{list(self._name)}".strip()


class _Namespace:
    """Upstreams as attributes: all for coroutines, or those over HTTP."""

    def __init__(self, kind=None, is_async=False):
        self._kind, self._is_async = kind, is_async

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        if self._is_async and name == "http":
            return _Namespace("http", True)
        return self[name]

    def __getitem__(self, name):
        return _Upstream(str(name), self._is_async)

    def __dir__(self):
        known = [entry for entry in _upstreams() if self._kind in (None, entry.get("kind"))]
        return sorted(_by_identifier([entry["name"] for entry in known]))

    def __reduce__(self):
        return _Namespace, (self._kind, self._is_async)


aio, http = _Namespace(is_async=True), _Namespace("http")


def upstream(name):
    """Returns the upstream of this name, for names that are not attributes of this module."""
    return _Upstream(name)


def __getattr__(name):
    # Whether there is such an upstream is found out when it is used: whoever looks for a name in all modules must not
    # wait for the server.
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _Upstream(name)


def __dir__():
    try:
        names = _by_identifier([entry["name"] for entry in _upstreams()])
    except ToolError:
        names = ()
    classes = (name for name, value in globals().items() if isinstance(value, type) and name[0] != "_")
    return sorted({*names, *classes, *__all__, "aio", "http", "list"})
