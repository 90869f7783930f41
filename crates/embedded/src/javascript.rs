//! JavaScript in a guest: calls QuickJS's functions, and ours in it (guest/javascript.js).

use std::{thread, time::Duration};

use protocol::{
    limits::MAX_RESULT,
    message::{Contents, Stream},
};
use serde::Deserialize;
use serde_json::json;
use wasmtime::{Caller, Linker};

use crate::{
    declarations::as_vars,
    files::{Base, DATA, DatasetPath, Datasets, Errno, Located, Stat},
    machine::{Guest, Halt, Machine},
    python::Told,
    random,
    wasi::{HasWorld, Process, ask},
};

/// Our sources in the image, in addition to the package.
pub(crate) const SOURCES: [&str; 2] = [
    // A module of Node's kind, which the other source takes and deletes.
    concat!(
        "globalThis.__llm_make_tools = ((module) => {",
        include_str!("../../../sandbox-image/runtimes/javascript/tools.cjs"),
        "return module.exports; })({})"
    ),
    include_str!("../guest/javascript.js"),
];

/// Bytes of stack that QuickJS may use: half of its stack, so that it can still report an overflow.
const STACK: i32 = 500_000;

/// `JS_EVAL_FLAG_ASYNC`: `await` is allowed at the top level.
const ASYNC: i32 = 1 << 7;

/// Host functions that the guest can call. Our code in the guest takes them and deletes their names.
const HOST: [&str; 6] = [
    "__llm_write",
    "__llm_tell",
    "__llm_file",
    "__llm_call",
    "__llm_promise_state",
    "__llm_promise_result",
];

/// Largest file that is read, in bytes.
const MAX_READ: u64 = 32 << 20;

/// Longest sleep of a waiting guest between two checks whether it must stop.
const SLICE: Duration = Duration::from_millis(2);

/// The process of a new guest.
pub(crate) fn process() -> Process {
    Process::new(vec!["qjs".to_owned()], vec![], vec![])
}

/// The report of our code on a cell.
#[derive(Debug, Deserialize)]
struct CellTold {
    code: i32,
    #[serde(default)]
    text: Option<String>,
}

/// Defines the functions that the package imports from its host.
pub(crate) fn link(linker: &mut Linker<Guest>) -> wasmtime::Result<()> {
    linker.func_wrap("env", "host_interrupt", || -> i32 { 0 })?;
    linker.func_wrap("env", "host_get_timezone_offset", |_: i32, _: i32| -> i32 { 0 })?;
    linker.func_wrap_async(
        "env",
        "host_promise_rejection",
        |mut caller: Caller<'_, Guest>, (promise, why, is_handled): (i32, i32, i32)| {
            Box::new(async move { pass_on(&mut caller, promise, why, is_handled).await })
        },
    )?;
    linker.func_wrap("env", "host_module_normalize", |_: i32, _: i32| -> i32 { 0 })?;
    linker.func_wrap("env", "host_module_load", |_: i32, _: i32| -> i32 { 0 })?;
    linker.func_wrap_async(
        "env",
        "host_call",
        |mut caller: Caller<'_, Guest>,
         (name, len, _this, count, args): (i32, i32, i32, i32, i32)| {
            Box::new(async move {
                let name = bytes(&caller, name, len)?.to_vec();
                // These need the value itself: user code may decide what its text is.
                if name == b"__llm_promise_state" || name == b"__llm_promise_result" {
                    let value = if count > 0 { word(&caller, args)? } else { 0 };
                    return of_promise(&mut caller, &name, value).await;
                }
                let mut texts = vec![];
                for number in 0..count.clamp(0, 3) {
                    let value = word(&caller, args + 4 * number)?;
                    texts.push(text(&mut caller, value).await?);
                }
                let answer = if name == b"__llm_call" {
                    let answer = ask(&mut caller, texts.pop().unwrap_or_default())?;
                    answer.map(|answer| String::from_utf8_lossy(&answer).into_owned())
                } else {
                    answer(&mut caller, &name, &texts)
                };
                match answer {
                    None => call(&mut caller, "qjs_get_undefined", &[]).await,
                    Some(answer) => {
                        let at = put(&mut caller, answer.as_bytes()).await?;
                        let len = i32::try_from(answer.len())?;
                        let value = call(&mut caller, "qjs_new_string", &[at, len]).await?;
                        call(&mut caller, "wasm_free", &[at]).await?;
                        Ok(value)
                    }
                }
            })
        },
    )?;
    Ok(())
}

/// The state of a promise as a number in a string, or its result.
async fn of_promise(
    caller: &mut Caller<'_, Guest>,
    name: &[u8],
    value: i32,
) -> wasmtime::Result<i32> {
    let is_promise = value != 0 && call(caller, "qjs_is_promise", &[value]).await? != 0;
    if name == b"__llm_promise_result" {
        let function = if is_promise { "qjs_promise_result" } else { "qjs_get_undefined" };
        let args = if is_promise { vec![value] } else { vec![] };
        return call(caller, function, &args).await;
    }
    let state = if is_promise { call(caller, "qjs_promise_state", &[value]).await? } else { -1 };
    let state = state.to_string();
    let at = put(caller, state.as_bytes()).await?;
    let text = call(caller, "qjs_new_string", &[at, i32::try_from(state.len())?]).await?;
    call(caller, "wasm_free", &[at]).await?;
    Ok(text)
}

/// Reports to our code in the guest that a promise was rejected without a handler, or was handled later.
async fn pass_on(
    caller: &mut Caller<'_, Guest>,
    promise: i32,
    why: i32,
    is_handled: i32,
) -> wasmtime::Result<()> {
    let mut named = vec![];
    for name in ["__llm", "rejection"] {
        named.push(put(caller, name.as_bytes()).await?);
    }
    let global = call(caller, "qjs_get_global", &[]).await?;
    let ours = call(caller, "qjs_get_prop_string", &[global, named[0]]).await?;
    let function = call(caller, "qjs_get_prop_string", &[ours, named[1]]).await?;
    let truth = if is_handled != 0 { "qjs_get_true" } else { "qjs_get_false" };
    let truth = call(caller, truth, &[]).await?;
    let args: Vec<_> = [promise, why, truth].iter().flat_map(|arg| arg.to_le_bytes()).collect();
    let at = put(caller, &args).await?;
    let answer = call(caller, "qjs_call", &[function, ours, 3, at]).await?;
    for value in [answer, truth, function, ours, global, promise, why] {
        call(caller, "qjs_free_value", &[value]).await?;
    }
    for at in named.into_iter().chain([at]) {
        call(caller, "wasm_free", &[at]).await?;
    }
    Ok(())
}

fn bytes<'a>(caller: &'a Caller<'_, Guest>, at: i32, len: i32) -> wasmtime::Result<&'a [u8]> {
    let memory = caller.data().memory().ok_or_else(|| wasmtime::format_err!("no memory"))?;
    let (at, len) = (at.cast_unsigned() as usize, len.cast_unsigned() as usize);
    let found = memory.data(caller).get(at..at.saturating_add(len));
    found.ok_or_else(|| wasmtime::format_err!("an address outside the memory"))
}

fn word(caller: &Caller<'_, Guest>, at: i32) -> wasmtime::Result<i32> {
    Ok(i32::from_le_bytes(bytes(caller, at, 4)?.try_into()?))
}

/// Calls a function of the guest while the guest calls one of ours.
async fn call(caller: &mut Caller<'_, Guest>, name: &str, args: &[i32]) -> wasmtime::Result<i32> {
    let function = caller.get_export(name).and_then(wasmtime::Extern::into_func);
    let function = function.ok_or_else(|| wasmtime::format_err!("no function {name}"))?;
    let args: Vec<_> = args.iter().map(|arg| wasmtime::Val::I32(*arg)).collect();
    let mut results = vec![wasmtime::Val::I32(0); function.ty(&*caller).results().len()];
    function.call_async(&mut *caller, &args, &mut results).await?;
    Ok(results.first().and_then(wasmtime::Val::i32).unwrap_or(0))
}

/// The text of a value, as bytes. Incomplete characters are kept.
async fn text(caller: &mut Caller<'_, Guest>, value: i32) -> wasmtime::Result<Vec<u8>> {
    let len_at = call(caller, "wasm_malloc", &[4]).await?;
    let at = call(caller, "qjs_get_string_len", &[value, len_at]).await?;
    if at == 0 {
        return Ok(vec![]);
    }
    let len = word(caller, len_at)?;
    let text = bytes(caller, at, len)?.to_vec();
    call(caller, "qjs_free_cstring", &[at]).await?;
    call(caller, "wasm_free", &[len_at]).await?;
    Ok(text)
}

async fn put(caller: &mut Caller<'_, Guest>, text: &[u8]) -> wasmtime::Result<i32> {
    let at = call(caller, "wasm_malloc", &[i32::try_from(text.len() + 1)?]).await?;
    let memory = caller.data().memory().ok_or_else(|| wasmtime::format_err!("no memory"))?;
    memory.write(&mut *caller, at.cast_unsigned() as usize, text)?;
    memory.write(caller, at.cast_unsigned() as usize + text.len(), &[0])?;
    Ok(at)
}

/// Carries out a call of one of our functions. Returns its answer, if it has one.
fn answer(caller: &mut Caller<'_, Guest>, name: &[u8], args: &[Vec<u8>]) -> Option<String> {
    let arg = |number: usize| args.get(number).map_or(&[][..], Vec::as_slice);
    let (process, files) = caller.data_mut().world();
    match name {
        b"__llm_write" => {
            let stream = if arg(0) == b"2" { Stream::Stderr } else { Stream::Stdout };
            process.write_output(stream, String::from_utf8_lossy(arg(1)).as_bytes());
            None
        }
        b"__llm_tell" => {
            process.write_report(arg(0));
            None
        }
        b"__llm_file" => {
            let done = if arg(0) == b"input" {
                as_text(process.rest_of_input())
            } else {
                let mut files = files.lock().expect("no thread panics while it holds this");
                let path = String::from_utf8_lossy(arg(1)).into_owned();
                act(&mut files, arg(0), &path, arg(2))
            };
            let answer = done.map_or_else(
                |errno| {
                    let (code, words) = named(errno);
                    json!({ "error": code, "words": words })
                },
                |value| json!({ "value": value }),
            );
            Some(answer.to_string())
        }
        _ => None,
    }
}

/// Bytes as a JSON string of characters from 0 to 255.
fn as_text(bytes: Vec<u8>) -> Result<serde_json::Value, Errno> {
    // As a JSON string the bytes need several times as much memory.
    if bytes.len() as u64 > MAX_READ {
        return Err(Errno::Fbig);
    }
    Ok(bytes.into_iter().map(char::from).collect::<String>().into())
}

/// Carries out an operation on a file. Bytes are characters from 0 to 255.
fn act(
    files: &mut crate::files::FileSystem,
    act: &[u8],
    path: &str,
    text: &[u8],
) -> Result<serde_json::Value, Errno> {
    if let Located::Dataset(path) = files.locate(Base::Node(DATA), path, act != b"unlink")? {
        return act_in_dataset(files.datasets(), act, &path);
    }
    match act {
        b"open" => {
            let file = files.find(DATA, path, true)?;
            let content = files.content(file)?;
            if content.len() > MAX_READ {
                return Err(Errno::Fbig);
            }
            let mut bytes = vec![0; usize::try_from(content.len()).map_err(|_| Errno::Fbig)?];
            content.read(0, &mut bytes)?;
            as_text(bytes)
        }
        b"write" | b"append" => {
            let (file, _) = files.find_or_create(DATA, path, true)?;
            if act == b"write" {
                files.resize(file, 0)?;
            }
            let bytes: Vec<_> = String::from_utf8_lossy(text)
                .chars()
                .map(|c| u8::try_from(u32::from(c)).unwrap_or(b'?'))
                .collect();
            let end = files.stat(file)?.size;
            if files.write(file, end, &bytes)? == bytes.len() {
                Ok(serde_json::Value::Null)
            } else {
                Err(Errno::Nospc)
            }
        }
        b"stat" => Ok(stat_as_json(&files.stat(files.find(DATA, path, true)?)?)),
        b"scandir" => {
            let names = files.entries(files.find(DATA, path, true)?)?.keys();
            Ok(names.cloned().collect())
        }
        b"unlink" => files.remove_file(DATA, path).map(|()| serde_json::Value::Null),
        b"mkdir" => files.make_folder(DATA, path).map(|_| serde_json::Value::Null),
        _ => Err(Errno::Nosys),
    }
}

fn stat_as_json(stat: &Stat) -> serde_json::Value {
    let modified = stat.modified / 1_000_000;
    json!({ "size": stat.size, "folder": stat.filetype == 3, "modified": modified })
}

/// Carries out an operation on a file of a dataset.
fn act_in_dataset(
    datasets: &Datasets,
    act: &[u8],
    path: &DatasetPath,
) -> Result<serde_json::Value, Errno> {
    match act {
        b"open" => as_text(datasets.read_all(path, MAX_READ)?),
        b"stat" => Ok(stat_as_json(&datasets.stat(path, true)?)),
        b"scandir" => Ok(datasets.names(path, MAX_READ)?.into()),
        _ => Err(Errno::Rofs),
    }
}

/// Node's code and message for an error.
fn named(errno: Errno) -> (&'static str, &'static str) {
    match errno {
        Errno::Noent => ("ENOENT", "no such file or directory"),
        Errno::Exist => ("EEXIST", "file already exists"),
        Errno::Isdir => ("EISDIR", "illegal operation on a directory"),
        Errno::Notdir => ("ENOTDIR", "not a directory"),
        Errno::Fbig => ("EFBIG", "file too large"),
        Errno::Nospc => ("ENOSPC", "no space left on device"),
        Errno::Rofs => ("EROFS", "read-only file system"),
        Errno::Acces => ("EACCES", "permission denied"),
        Errno::Io => ("EIO", "i/o error"),
        Errno::Xdev => ("EXDEV", "cross-device link not permitted"),
        Errno::Loop => ("ELOOP", "too many symbolic links encountered"),
        _ => ("EINVAL", "invalid argument"),
    }
}

/// Turns a new instance into the one that becomes the image.
pub(crate) fn boot(machine: &mut Machine) -> Result<Vec<String>, Halt> {
    machine.call("_initialize", &[])?;
    machine.call("qjs_init", &[])?;
    machine.call("qjs_set_max_stack_size", &[STACK])?;
    let global = machine.call("qjs_get_global", &[])?;
    for name in HOST {
        let at = place(machine, name.as_bytes())?;
        let len = i32::try_from(name.len()).unwrap_or(0);
        let function = machine.call("qjs_new_host_function", &[at, len, 0])?;
        machine.call("qjs_set_prop_string", &[global, at, function])?;
    }
    for source in SOURCES {
        let value = evaluate(machine, source, "llm-sandbox", 0)?;
        if machine.call("qjs_is_exception", &[value])? != 0 {
            return Err(Halt::Trap("our own code does not run".into()));
        }
    }
    machine.call("qjs_set_promise_rejection_handler", &[1])?;
    for _ in 0..20 {
        // The code declares no variables: they would remain and be reported as the user's.
        cell(machine, "console.log([1, {a: 2}]); [1, {a: 2}]")?;
        machine.guest().process.begin(vec![], None);
    }
    Ok(vec![])
}

/// Copies bytes into the guest's memory, followed by a zero.
fn place(machine: &mut Machine, bytes: &[u8]) -> Result<i32, Halt> {
    let len = i32::try_from(bytes.len() + 1).map_err(|_| Halt::Trap("a text too long".into()))?;
    let at = machine.call("wasm_malloc", &[len])?;
    let start = at.cast_unsigned() as usize;
    let room = machine.bytes_mut().get_mut(start..start + bytes.len() + 1);
    let room = room.filter(|_| at != 0).ok_or_else(|| Halt::Trap("no memory".into()))?;
    room[..bytes.len()].copy_from_slice(bytes);
    room[bytes.len()] = 0;
    Ok(at)
}

fn evaluate(machine: &mut Machine, code: &str, name: &str, flags: i32) -> Result<i32, Halt> {
    let (at, name) = (place(machine, code.as_bytes())?, place(machine, name.as_bytes())?);
    let len = i32::try_from(code.len()).map_err(|_| Halt::Trap("a text too long".into()))?;
    let value = machine.call("qjs_eval", &[at, len, name, flags])?;
    machine.call("wasm_free", &[at])?;
    machine.call("wasm_free", &[name])?;
    Ok(value)
}

/// Calls one of our functions in the guest with a value of the guest. Returns its answer as a number, rounded up, or
/// -1 if it failed or returned no number.
fn ours(machine: &mut Machine, function: &str, value: Option<i32>) -> Result<i32, Halt> {
    let argument = match value {
        Some(value) => {
            let global = machine.call("qjs_get_global", &[])?;
            let name = place(machine, b"__llm_value")?;
            machine.call("qjs_set_prop_string", &[global, name, value])?;
            machine.call("wasm_free", &[name])?;
            "__llm_value"
        }
        None => "",
    };
    let code = format!("__llm.{function}({argument})");
    let answer = evaluate(machine, &code, "llm-sandbox", 0)?;
    if machine.call("qjs_is_exception", &[answer])? != 0 {
        machine.call("qjs_get_exception", &[])?;
        return Ok(-1);
    }
    let text = machine.call("qjs_get_string", &[answer])?;
    machine.call("qjs_free_value", &[answer])?;
    let bytes = machine.bytes().get(text.cast_unsigned() as usize..).unwrap_or_default();
    let number = bytes
        .iter()
        .take(20)
        .map_while(|byte| matches!(byte, b'0'..=b'9' | b'-' | b'.').then(|| char::from(*byte)));
    let number: String = number.collect();
    machine.call("qjs_free_cstring", &[text])?;
    #[expect(
        clippy::cast_possible_truncation,
        reason = "milliseconds of a wait that has a deadline"
    )]
    Ok(number.parse::<f64>().map_or(-1, |number| number.ceil().clamp(-1.0, 1e9) as i32))
}

/// Seeds an interpreter's random numbers, because the image has the same sequence for all. The generator is sfc32.
pub(crate) fn seed(machine: &mut Machine) -> Result<(), Halt> {
    let mut seed = [0; 16];
    random::fill(&mut seed).map_err(|error| Halt::Trap(error.to_string()))?;
    let words = seed.chunks_exact(4).map(|word| {
        let word: [u8; 4] = word.try_into().expect("four bytes");
        u32::from_le_bytes(word).to_string()
    });
    let code = format!(
        "(([a, b, c, d]) => {{\n\
         const next = () => {{\n\
         \x20 const sum = (a + b + d) | 0;\n\
         \x20 d = (d + 1) | 0; a = b ^ (b >>> 9); b = (c + (c << 3)) | 0;\n\
         \x20 c = (c << 21) | (c >>> 11); c = (c + sum) | 0;\n\
         \x20 return sum >>> 0;\n\
         }};\n\
         const random = () => ((next() >>> 5) * 67108864 + (next() >>> 6)) / 9007199254740992;\n\
         for (let n = 0; n < 15; n++) next();\n\
         const value = {{ random() {{ return random(); }} }}.random;\n\
         Object.defineProperty(Math, 'random', {{ value, writable: true, configurable: true }});\n\
         }})([{}]); 0",
        words.collect::<Vec<_>>().join(", ")
    );
    evaluate(machine, &code, "llm-sandbox", 0).map(drop)
}

/// Runs a cell, or in a new guest, a program.
pub(crate) fn cell(machine: &mut Machine, code: &str) -> Result<Option<Told>, Halt> {
    let value = evaluate(machine, &as_vars(code), "cell-1", ASYNC)?;
    if machine.call("qjs_is_exception", &[value])? != 0 {
        let error = machine.call("qjs_get_exception", &[])?;
        ours(machine, "fail", Some(error))?;
    } else {
        ours(machine, "watch", Some(value))?;
    }
    loop {
        while machine.call("qjs_execute_pending_job", &[])? > 0 {}
        match ours(machine, "next", None)? {
            ..0 => break,
            0 => {}
            wait => sleep(machine, wait)?,
        }
    }
    ours(machine, "finish", None)?;
    let told = machine.guest().process.end();
    let Ok(CellTold { code, text }) = serde_json::from_slice(&told) else { return Ok(None) };
    Ok(Some(Told::new(code, text.as_deref())))
}

/// Waits `wait` milliseconds, or until the guest must stop.
fn sleep(machine: &mut Machine, wait: i32) -> Result<(), Halt> {
    let until = std::time::Instant::now() + Duration::from_millis(u64::from(wait.unsigned_abs()));
    loop {
        machine.check()?;
        let left = until.saturating_duration_since(std::time::Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(SLICE));
    }
}

/// Reports the variables of the interpreter.
pub(crate) fn look(machine: &mut Machine) -> Result<Option<Contents>, Halt> {
    ours(machine, "look", None)?;
    Ok(serde_json::from_slice(&machine.guest().process.end()).ok())
}

/// Start and end of a text, with at most as many bytes as a reply may have.
pub(crate) fn cut(text: &str) -> (Vec<u8>, Vec<u8>) {
    const HEAD: usize = MAX_RESULT * 3 / 5;
    let bytes = text.as_bytes();
    if bytes.len() <= MAX_RESULT {
        return (bytes.to_vec(), vec![]);
    }
    (bytes[..HEAD].to_vec(), bytes[bytes.len() - (MAX_RESULT - HEAD)..].to_vec())
}
