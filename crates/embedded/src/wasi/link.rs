//! Binds the functions of WASI to wasmtime, under the names of both generations.

use std::{
    fmt,
    sync::{
        Mutex,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use wasmtime::{Caller, Linker, Memory as GuestMemory};

use super::{
    calls::{Call, Generation},
    memory::Memory,
    process::Process,
};
use crate::files::{Errno, FileSystem};

/// Longest sleep of a waiting guest between two checks whether it must stop.
const SLICE: Duration = Duration::from_millis(2);

/// The same, while it waits for a person.
const PAUSED_SLICE: Duration = Duration::from_millis(50);

/// Maximum number of random bytes that are drawn between two checks whether the guest must stop.
const RANDOM_AT_ONCE: u32 = 1 << 20;

/// The reason why a guest stopped within a call of one of our functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The guest ended itself, with this code.
    Exit(u32),
    /// The deadline has passed, or the call was cancelled. The caller of the guest finds out which.
    Interrupted,
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl std::error::Error for Stop {}

/// The data of a guest that calls use.
pub(crate) trait HasWorld: Send + 'static {
    /// The guest's memory.
    fn memory(&self) -> Option<GuestMemory>;
    /// The guest's process, and the files.
    fn world(&mut self) -> (&mut Process, &Mutex<FileSystem>);
    /// The start of the guest's monotonic clock.
    fn start(&self) -> Instant;
    /// Whether the guest must stop now.
    fn must_stop(&self) -> bool;
    /// Moves the guest's deadline.
    fn put_off(&self, by: Duration);
}

/// Carries out a call, unless the guest must stop. This is checked with each call, because a call uses almost no fuel,
/// however long it takes, so that many calls could pass before the next check between slices.
fn enter<G: HasWorld, T>(
    caller: &mut Caller<'_, G>,
    generation: Generation,
    act: impl FnOnce(&mut Call<'_>) -> Result<T, Errno>,
) -> wasmtime::Result<Result<T, Errno>> {
    if caller.data().must_stop() {
        return Err(wasmtime::Error::new(Stop::Interrupted));
    }
    let Some(memory) = caller.data().memory() else { return Ok(Err(Errno::Fault)) };
    let start = caller.data().start();
    let (bytes, guest) = memory.data_and_store_mut(caller);
    let (process, files) = guest.world();
    let mut files = files.lock().expect("no thread panics while it holds this");
    Ok(act(&mut Call { memory: Memory(bytes), process, files: &mut files, generation, start }))
}

fn number<T>(done: Result<T, Errno>) -> i32 {
    done.err().map_or(0, |errno| i32::from(errno as u16))
}

/// Defines functions that only pass on their call. Parameters are `i32` or `i64`.
macro_rules! functions {
    ($linker:ident, $module:expr, $generation:expr, $($name:ident($($arg:ident: $type:ident),*);)*) => {
        $($linker.func_wrap($module, stringify!($name), move |mut caller: Caller<'_, G>, $($arg: $type),*| -> wasmtime::Result<i32> {
            let done = enter(&mut caller, $generation, |call| call.$name($(functions!(@unsigned $arg $type)),*));
            Ok(number(done?))
        })?;)*
    };
    (@unsigned $arg:ident i32) => { $arg.cast_unsigned() };
    (@unsigned $arg:ident i64) => { $arg.cast_unsigned() };
}

/// Defines the functions of WASI for guests.
pub(crate) fn link<G: HasWorld>(linker: &mut Linker<G>) -> wasmtime::Result<()> {
    let generations =
        [("wasi_snapshot_preview1", Generation::Preview1), ("wasi_unstable", Generation::Unstable)];
    for (module, generation) in generations {
        functions!(linker, module, generation,
            args_get(starts: i32, at: i32);
            args_sizes_get(count: i32, bytes: i32);
            environ_get(starts: i32, at: i32);
            environ_sizes_get(count: i32, bytes: i32);
            clock_res_get(clock: i32, at: i32);
            clock_time_get(clock: i32, precision: i64, at: i32);
            fd_advise(fd: i32, offset: i64, len: i64, advice: i32);
            fd_allocate(fd: i32, offset: i64, len: i64);
            fd_close(fd: i32);
            fd_datasync(fd: i32);
            fd_fdstat_get(fd: i32, at: i32);
            fd_fdstat_set_flags(fd: i32, flags: i32);
            fd_fdstat_set_rights(fd: i32, base: i64, inheriting: i64);
            fd_filestat_get(fd: i32, at: i32);
            fd_filestat_set_size(fd: i32, size: i64);
            fd_filestat_set_times(fd: i32, accessed: i64, modified: i64, flags: i32);
            fd_pread(fd: i32, buffers: i32, count: i32, offset: i64, done: i32);
            fd_prestat_get(fd: i32, at: i32);
            fd_prestat_dir_name(fd: i32, at: i32, len: i32);
            fd_pwrite(fd: i32, buffers: i32, count: i32, offset: i64, done: i32);
            fd_readdir(fd: i32, at: i32, len: i32, cookie: i64, done: i32);
            fd_renumber(from: i32, to: i32);
            fd_seek(fd: i32, delta: i64, whence: i32, done: i32);
            fd_sync(fd: i32);
            fd_tell(fd: i32, done: i32);
            fd_write(fd: i32, buffers: i32, count: i32, done: i32);
            path_create_directory(fd: i32, path: i32, len: i32);
            path_filestat_get(fd: i32, flags: i32, path: i32, len: i32, at: i32);
            path_filestat_set_times(fd: i32, flags: i32, path: i32, len: i32, accessed: i64, modified: i64, which: i32);
            path_link(old_fd: i32, flags: i32, old: i32, old_len: i32, new_fd: i32, new: i32, new_len: i32);
            path_open(fd: i32, lookup: i32, path: i32, len: i32, how: i32, rights: i64, inheriting: i64, flags: i32, done: i32);
            path_readlink(fd: i32, path: i32, len: i32, at: i32, room: i32, done: i32);
            path_remove_directory(fd: i32, path: i32, len: i32);
            path_rename(old_fd: i32, old: i32, old_len: i32, new_fd: i32, new: i32, new_len: i32);
            path_symlink(target: i32, target_len: i32, fd: i32, path: i32, len: i32);
            path_unlink_file(fd: i32, path: i32, len: i32);
        );
        link_read(linker, module, generation)?;
        linker.func_wrap(
            module,
            "random_get",
            move |mut caller: Caller<'_, G>, at: i32, len: i32| -> wasmtime::Result<i32> {
                let (mut at, mut left) = (at.cast_unsigned(), len.cast_unsigned());
                loop {
                    let part = left.min(RANDOM_AT_ONCE);
                    let done = enter(&mut caller, generation, |call| call.random_get(at, part))?;
                    (at, left) = (at.wrapping_add(part), left - part);
                    if done.is_err() || left == 0 {
                        return Ok(number(done));
                    }
                }
            },
        )?;
        linker.func_wrap(
            module,
            "poll_oneoff",
            move |mut caller: Caller<'_, G>,
                  subscriptions: i32,
                  events: i32,
                  count: i32,
                  done: i32|
                  -> wasmtime::Result<i32> {
                let wait = enter(&mut caller, generation, |call| {
                    let [subscriptions, events, count, done] =
                        [subscriptions, events, count, done].map(i32::cast_unsigned);
                    call.poll_oneoff(subscriptions, events, count, done)
                })?;
                if let Ok(wait) = wait {
                    sleep(&caller, wait)?;
                }
                Ok(number(wait))
            },
        )?;
        linker.func_wrap(module, "proc_exit", |code: i32| -> wasmtime::Result<()> {
            Err(wasmtime::Error::new(Stop::Exit(code.cast_unsigned())))
        })?;
        linker.func_wrap(module, "proc_raise", |_: i32| i32::from(Errno::Nosys as u16))?;
        linker.func_wrap(module, "sched_yield", || 0)?;
        let no_socket = i32::from(Errno::Notsup as u16);
        linker.func_wrap(module, "sock_accept", move |_: i32, _: i32, _: i32| no_socket)?;
        linker.func_wrap(
            module,
            "sock_recv",
            move |_: i32, _: i32, _: i32, _: i32, _: i32, _: i32| no_socket,
        )?;
        linker.func_wrap(module, "sock_send", move |_: i32, _: i32, _: i32, _: i32, _: i32| {
            no_socket
        })?;
        linker.func_wrap(module, "sock_shutdown", move |_: i32, _: i32| no_socket)?;
    }
    Ok(())
}

/// Defines `fd_read`, which may have to wait for the answer to a question without holding the files.
fn link_read<G: HasWorld>(
    linker: &mut Linker<G>,
    module: &str,
    generation: Generation,
) -> wasmtime::Result<()> {
    linker.func_wrap(
        module,
        "fd_read",
        move |mut caller: Caller<'_, G>,
              fd: i32,
              buffers: i32,
              count: i32,
              done: i32|
              -> wasmtime::Result<i32> {
            let [fd, buffers, count, done] = [fd, buffers, count, done].map(i32::cast_unsigned);
            if let Some(question) = caller.data_mut().world().0.question(fd) {
                let answer = ask(&mut caller, question)?.unwrap_or_default();
                caller.data_mut().world().0.answer(answer);
            }
            let read =
                enter(&mut caller, generation, |call| call.fd_read(fd, buffers, count, done))?;
            Ok(number(read))
        },
    )?;
    Ok(())
}

/// Has the server answer a question, and waits for that; stops earlier if the guest must stop. `None` if the guest may
/// not ask.
pub(crate) fn ask<G: HasWorld>(
    caller: &mut Caller<'_, G>,
    question: Vec<u8>,
) -> wasmtime::Result<Option<Vec<u8>>> {
    let Some(asks) = caller.data_mut().world().0.asks() else { return Ok(None) };
    let (sender, answer) = mpsc::channel();
    let then = Box::new(move |answer| drop(sender.send(answer)));
    let asked = asks.run().and_then(|run| asks.ask(run, question, then));
    let Some(number) = asked else { return Ok(None) };
    loop {
        let before = Instant::now();
        let is_paused = asks.is_paused();
        match answer.recv_timeout(if is_paused { PAUSED_SLICE } else { SLICE }) {
            Ok(answer) => return Ok(Some(answer)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
        }
        // The guest is the only one of its run, so that it stands still while it waits.
        if is_paused {
            caller.data().put_off(before.elapsed());
        }
        if caller.data().must_stop() {
            asks.withdraw(number);
            return Err(wasmtime::Error::new(Stop::Interrupted));
        }
    }
}

/// Waits, or stops earlier if the guest must stop.
fn sleep<G: HasWorld>(caller: &Caller<'_, G>, wait: Duration) -> wasmtime::Result<()> {
    let begun = Instant::now();
    loop {
        if caller.data().must_stop() {
            return Err(wasmtime::Error::new(Stop::Interrupted));
        }
        match wait.checked_sub(begun.elapsed()) {
            Some(left) if !left.is_zero() => thread::sleep(left.min(SLICE)),
            _ => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use agent_core::Switch as _;

    use crate::{
        files::Library,
        machine::{self, Bounds, Guest, Halt, Machine, Switch},
        wasi::Process,
    };

    use super::*;

    /// Runs a program that makes one call and then aborts.
    fn halt_of(import: &str, call: &str, switch: Switch) -> Halt {
        let text = format!(
            r#"(module (import "wasi_snapshot_preview1" {import}) (memory (export "memory") 32)
                (func (export "_start") (drop (call $f {call})) (unreachable)))"#
        );
        let engine = machine::tool_engine().expect("an engine");
        let bytes = wat::parse_str(text).expect("a module");
        let module = wasmtime::Module::new(&engine, bytes).expect("compiled");
        let pre = machine::prelink(&engine, &module, |_| Ok(())).expect("linked");
        let files = FileSystem::new(Arc::new(Library::new([])), 1 << 20, 1 << 20);
        let process = Process::program(vec![], vec![], vec![]);
        let guest = Guest::new(process, Arc::new(Mutex::new(files)), 64 << 20);
        let mut machine = Machine::new(&pre, guest).expect("an instance");
        machine.bound(Bounds { switch, ..Bounds::default() });
        machine.call("_start", &[]).expect_err("it does not return")
    }

    #[test]
    fn no_call_begins_once_a_guest_has_to_leave_off() {
        let random = (
            r#""random_get" (func $f (param i32 i32) (result i32))"#,
            "(i32.const 0) (i32.const 9)",
        );
        let write = (
            r#""fd_write" (func $f (param i32 i32 i32 i32) (result i32))"#,
            "(i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)",
        );
        for (import, call) in [random, write] {
            assert_eq!(halt_of(import, call, Switch::default()), Halt::Abort);
            let thrown = Switch::default();
            thrown.throw();
            assert_eq!(halt_of(import, call, thrown), Halt::Killed);
        }
    }
}
