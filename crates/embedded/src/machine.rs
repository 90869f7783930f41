//! A running guest: an instance of a module, and the limits of its calls.
//!
//! A call runs in slices of about half a millisecond. Its deadline and its switch are checked between two slices, so
//! that its code is instrumented with fuel only (see `Store::fuel_async_yield_interval`).

use std::{
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use protocol::message::{End, Failure};
use wasmtime::{
    Config, Engine, Global, Instance, InstancePre, Linker, Memory, Module, OptLevel,
    ResourceLimiter, Store, Trap, Val,
};

use crate::{
    files::FileSystem,
    memory::{Creator, PAGE, RESERVED},
    module::GLOBAL,
    wasi::{self, Descriptors, HasWorld, Process, Stop},
};

/// Number of instructions of a slice.
const SLICE: u64 = 1_000_000;

/// Bytes of stack for nested calls of a guest. Python's own limit is far below.
const STACK: usize = 16 << 20;

/// Bytes of stack for our functions that guests call.
const OWN_STACK: usize = 2 << 20;

/// Maximum number of tables of a module. Compilers make one.
const MAX_TABLES: usize = 16;

/// Number of instructions of a call without a limit.
const UNBOUNDED: u64 = u64::MAX / 4;

/// Signals that end a native process after a fault such as a stack overflow, and after `abort`.
const FAULT: i32 = 11;
const ABORT: i32 = 6;

/// The engine of interpreters, with the same settings for compiling and running.
pub(crate) fn engine() -> wasmtime::Result<Engine> {
    let mut config = settings();
    // We map images over memories ourselves.
    config
        .memory_init_cow(false)
        .memory_reservation(RESERVED as u64)
        .with_host_memory(Arc::new(Creator));
    Engine::new(&config)
}

/// The engine of tools, whose programs start anew with each call.
pub(crate) fn tool_engine() -> wasmtime::Result<Engine> {
    let mut config = settings();
    // A tool has one memory, whose size is limited.
    config.wasm_multi_memory(false);
    Engine::new(&config)
}

fn settings() -> Config {
    let mut config = Config::new();
    config
        .consume_fuel(true)
        .wasm_exceptions(true)
        .cranelift_opt_level(OptLevel::Speed)
        .max_wasm_stack(STACK)
        .async_stack_size(STACK + OWN_STACK);
    #[cfg(target_arch = "x86_64")]
    use_common_instructions(&mut config);
    config
}

/// Uses the instructions of x86-64-v3 and no others, so that code that one processor has compiled runs on most. A
/// processor without them uses those that it has.
#[cfg(target_arch = "x86_64")]
fn use_common_instructions(config: &mut Config) {
    const TARGET: &str = if cfg!(target_env = "musl") {
        "x86_64-unknown-linux-musl"
    } else {
        "x86_64-unknown-linux-gnu"
    };
    let has_all = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("cmpxchg16b")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("popcnt")
        && is_x86_feature_detected!("sse4.2");
    // With a target, instructions are not looked up.
    if has_all && config.target(TARGET).is_ok() {
        #[expect(
            unsafe_code,
            reason = "the processor has the instructions that the flag stands for"
        )]
        unsafe {
            config.cranelift_flag_enable("x86-64-v3");
        }
    }
}

/// Ends a call from another thread.
#[derive(Debug, Clone, Default)]
pub(crate) struct Switch(Arc<AtomicBool>);

impl agent_core::Switch for Switch {
    fn new() -> Result<Self, Failure> {
        Ok(Self::default())
    }

    fn throw(&self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Switch {
    pub(crate) fn is_thrown(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// The limits of a call.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bounds {
    pub(crate) deadline: Option<Instant>,
    pub(crate) switch: Switch,
    pub(crate) fuel: Option<u64>,
    /// Microseconds for which the call waited for a person, which do not count.
    pub(crate) paused: Arc<AtomicU64>,
}

impl Bounds {
    /// The reason why the call must stop now, if there is one.
    fn reached(&self) -> Option<Halt> {
        if self.switch.is_thrown() {
            return Some(Halt::Killed);
        }
        let deadline = self.deadline.filter(|deadline| Instant::now() >= *deadline)?;
        (Instant::now() >= deadline + self.paused()).then_some(Halt::Deadline)
    }

    /// Time for which the call waited for a person.
    pub(crate) fn paused(&self) -> Duration {
        Duration::from_micros(self.paused.load(Ordering::Relaxed))
    }
}

/// The reason why a call did not return.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Halt {
    /// The guest ended itself, with this code.
    Exit(u32),
    /// The guest has used all its instructions.
    OutOfFuel,
    /// The deadline has passed.
    Deadline,
    /// The switch was thrown.
    Killed,
    /// The guest aborted.
    Abort,
    /// A fault, with wasmtime's message.
    Trap(String),
}

impl Halt {
    /// The end that is reported for the call. `was_denied` says whether the guest was denied memory.
    pub(crate) fn end(&self, was_denied: bool) -> End {
        match self {
            Self::Exit(code) => End::Exited { code: (code & 0xff).cast_signed() },
            Self::OutOfFuel => End::OutOfFuel,
            Self::Deadline => End::TimedOut,
            Self::Killed => End::Killed,
            Self::Abort | Self::Trap(_) if was_denied => End::OutOfMemory,
            Self::Abort => End::Signaled { signal: ABORT },
            Self::Trap(_) => End::Signaled { signal: FAULT },
        }
    }
}

/// The data of a guest: its process, files and limits.
pub(crate) struct Guest {
    pub(crate) process: Process,
    files: Arc<Mutex<FileSystem>>,
    memory: Option<Memory>,
    start: Instant,
    bounds: Bounds,
    most_memory: usize,
    /// Bytes that count towards its limit: of its memory, its tables, and the engine's records of its exceptions.
    held: usize,
    /// Whether the guest was denied memory beyond its limit.
    pub(crate) was_denied: bool,
}

impl Guest {
    /// A guest with these files, and at most `most_memory` bytes of memory.
    pub(crate) fn new(process: Process, files: Arc<Mutex<FileSystem>>, most_memory: usize) -> Self {
        Self {
            process,
            files,
            memory: None,
            start: Instant::now(),
            bounds: Bounds::default(),
            most_memory,
            held: 0,
            was_denied: false,
        }
    }

    /// Counts `more` bytes, if they are within the limit. Returns whether they are.
    fn grow(&mut self, more: usize) -> bool {
        let held = self.held.saturating_add(more);
        let is_too_much = held > self.most_memory;
        self.was_denied |= is_too_much;
        if !is_too_much {
            self.held = held;
        }
        !is_too_much
    }
}

impl HasWorld for Guest {
    fn memory(&self) -> Option<Memory> {
        self.memory
    }

    fn world(&mut self) -> (&mut Process, &Mutex<FileSystem>) {
        (&mut self.process, &self.files)
    }

    fn start(&self) -> Instant {
        self.start
    }

    fn must_stop(&self) -> bool {
        self.bounds.reached().is_some()
    }

    fn put_off(&self, by: Duration) {
        let micros = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
        self.bounds.paused.fetch_add(micros, Ordering::Relaxed);
    }
}

impl ResourceLimiter for Guest {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _: Option<usize>,
    ) -> wasmtime::Result<bool> {
        Ok(self.grow(desired.saturating_sub(current)))
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        _: Option<usize>,
    ) -> wasmtime::Result<bool> {
        Ok(self.grow(desired.saturating_sub(current).saturating_mul(size_of::<usize>())))
    }

    fn tables(&self) -> usize {
        MAX_TABLES
    }
}

/// Links a module with all functions that guests can import, so that instances of it can be made.
pub(crate) fn prelink(
    engine: &Engine,
    module: &Module,
    more: impl FnOnce(&mut Linker<Guest>) -> wasmtime::Result<()>,
) -> wasmtime::Result<InstancePre<Guest>> {
    let mut linker = Linker::new(engine);
    wasi::link(&mut linker)?;
    more(&mut linker)?;
    linker.instantiate_pre(module)
}

/// An instance of a module.
pub(crate) struct Machine {
    store: Store<Guest>,
    instance: Instance,
    memory: Memory,
    globals: Vec<Global>,
}

impl Machine {
    /// Makes an instance. None of its code has run except the module's start function.
    pub(crate) fn new(pre: &InstancePre<Guest>, guest: Guest) -> wasmtime::Result<Self> {
        let made = Self::within(pre, guest, Bounds::default());
        made.map_err(|(halt, _)| wasmtime::format_err!("no instance: {halt:?}"))
    }

    /// Makes an instance within limits, which also apply to its calls. If it halts, the error says whether the module
    /// was denied memory.
    pub(crate) fn within(
        pre: &InstancePre<Guest>,
        guest: Guest,
        bounds: Bounds,
    ) -> Result<Self, (Halt, bool)> {
        let mut store = Store::new(pre.module().engine(), guest);
        store.limiter(|guest| guest);
        let made = Self::make(pre, &mut store, bounds);
        match made {
            Ok((instance, memory, globals)) => Ok(Self { store, instance, memory, globals }),
            Err(halt) => Err((halt, store.data().was_denied)),
        }
    }

    fn make(
        pre: &InstancePre<Guest>,
        mut store: &mut Store<Guest>,
        bounds: Bounds,
    ) -> Result<(Instance, Memory, Vec<Global>), Halt> {
        bound(store, bounds.clone());
        store.fuel_async_yield_interval(Some(SLICE)).expect("the engine counts fuel");
        let made = drive(pre.instantiate_async(&mut store), &bounds)?;
        let instance = made.map_err(|error| halt(&error, store.data()))?;
        let memory = instance.get_memory(&mut store, "memory");
        let memory = memory.ok_or_else(|| Halt::Trap("a module without a memory".into()))?;
        store.data_mut().memory = Some(memory);
        let names: Vec<_> = instance
            .exports(&mut store)
            .map(|export| export.name().to_owned())
            .filter(|name| name.starts_with(GLOBAL))
            .collect();
        let globals = names.iter().filter_map(|name| instance.get_global(&mut store, name));
        Ok((instance, memory, globals.collect()))
    }

    pub(crate) fn guest(&mut self) -> &mut Guest {
        self.store.data_mut()
    }

    /// The guest's open files.
    pub(crate) fn descriptors(&self) -> &Descriptors {
        &self.store.data().process.descriptors
    }

    /// Makes private copies of the pages with these numbers, by writing to them.
    pub(crate) fn touch(&mut self, pages: &[u32]) {
        let bytes = self.bytes_mut();
        for page in pages {
            if let Some(byte) = bytes.get_mut(*page as usize * PAGE) {
                // `black_box` makes the compiler keep this write.
                *byte = std::hint::black_box(*byte);
            }
        }
    }

    /// Address and size of its memory, in bytes.
    pub(crate) fn extent(&self) -> (*mut u8, usize) {
        (self.memory.data_ptr(&self.store), self.memory.data_size(&self.store))
    }

    /// The guest's memory.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.memory.data(&self.store)
    }

    /// The guest's memory, writable.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.memory.data_mut(&mut self.store)
    }

    /// Grows its memory to at least `size` bytes.
    pub(crate) fn grow_to(&mut self, size: usize) -> wasmtime::Result<()> {
        const WASM_PAGE: usize = 64 << 10;
        let missing = size.saturating_sub(self.extent().1).div_ceil(WASM_PAGE) as u64;
        let was_denied = self.guest().was_denied;
        if missing > 0 {
            self.memory.grow(&mut self.store, missing)?;
        }
        self.guest().was_denied = was_denied;
        Ok(())
    }

    /// The values of the guest's mutable globals.
    pub(crate) fn globals(&mut self) -> Vec<u64> {
        let store = &mut self.store;
        let value = |global: &Global| match global.get(&mut *store) {
            Val::I32(value) => u64::from(value.cast_unsigned()),
            Val::I64(value) => value.cast_unsigned(),
            Val::F32(bits) => u64::from(bits),
            Val::F64(bits) => bits,
            // References cannot be saved, and our guests have none.
            _ => 0,
        };
        self.globals.iter().map(value).collect()
    }

    /// Sets the values of its mutable globals.
    pub(crate) fn set_globals(&mut self, values: &[u64]) -> wasmtime::Result<()> {
        #[expect(clippy::cast_possible_truncation, reason = "it was so wide when it was taken")]
        for (global, value) in self.globals.iter().zip(values) {
            let value = match global.get(&mut self.store) {
                Val::I32(_) => Val::I32((*value as u32).cast_signed()),
                Val::I64(_) => Val::I64(value.cast_signed()),
                Val::F32(_) => Val::F32(*value as u32),
                Val::F64(_) => Val::F64(*value),
                _ => continue,
            };
            global.set(&mut self.store, value)?;
        }
        Ok(())
    }

    /// Sets the limits of the calls that follow.
    pub(crate) fn bound(&mut self, bounds: Bounds) {
        bound(&mut self.store, bounds);
    }

    /// Instructions that were used since the limits were set.
    pub(crate) fn fuel_used(&mut self) -> u64 {
        let fuel = self.guest().bounds.fuel.unwrap_or(UNBOUNDED);
        fuel.saturating_sub(self.store.get_fuel().unwrap_or(fuel))
    }

    /// Returns an error if it must stop: its switch was thrown or its deadline has passed.
    pub(crate) fn check(&mut self) -> Result<(), Halt> {
        self.guest().bounds.reached().map_or(Ok(()), Err)
    }

    /// Whether a function is exported.
    pub(crate) fn has(&mut self, name: &str) -> bool {
        self.instance.get_func(&mut self.store, name).is_some()
    }

    /// Calls a function that takes and returns 32-bit numbers. If it returns none, the result is 0.
    pub(crate) fn call(&mut self, name: &str, args: &[i32]) -> Result<i32, Halt> {
        let function = self.instance.get_func(&mut self.store, name);
        let function = function.ok_or_else(|| Halt::Trap(format!("no function {name}")))?;
        let args: Vec<_> = args.iter().map(|arg| Val::I32(*arg)).collect();
        let mut results = vec![Val::I32(0); function.ty(&self.store).results().len()];
        let bounds = self.guest().bounds.clone();
        match drive(function.call_async(&mut self.store, &args, &mut results), &bounds)? {
            Ok(()) => Ok(results.first().and_then(Val::i32).unwrap_or(0)),
            Err(error) => Err(halt(&error, self.store.data())),
        }
    }
}

fn bound(store: &mut Store<Guest>, bounds: Bounds) {
    let fuel = bounds.fuel.unwrap_or(UNBOUNDED);
    store.set_fuel(fuel).expect("the engine counts fuel");
    store.data_mut().was_denied = false;
    store.data_mut().bounds = bounds;
}

/// Runs a call slice by slice, until it ends or reaches a limit.
fn drive<T>(work: impl Future<Output = T>, bounds: &Bounds) -> Result<T, Halt> {
    let mut work = pin!(work);
    loop {
        if let Poll::Ready(done) = work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return Ok(done);
        }
        if let Some(halt) = bounds.reached() {
            return Err(halt);
        }
    }
}

fn halt(error: &wasmtime::Error, guest: &Guest) -> Halt {
    if let Some(stop) = error.downcast_ref::<Stop>() {
        return match stop {
            Stop::Exit(code) => Halt::Exit(*code),
            Stop::Interrupted if guest.bounds.switch.is_thrown() => Halt::Killed,
            Stop::Interrupted => Halt::Deadline,
        };
    }
    match error.downcast_ref::<Trap>() {
        Some(Trap::OutOfFuel) => Halt::OutOfFuel,
        Some(Trap::UnreachableCodeReached) => Halt::Abort,
        Some(trap) => Halt::Trap(trap.to_string()),
        None => Halt::Trap(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use crate::files::Library;

    use super::*;

    #[test]
    fn memory_and_all_tables_together_have_one_limit() {
        let tables = "(table 1 funcref)".repeat(4);
        let grow = (0..4).map(|table| {
            format!("(i32.add (table.grow {table} (ref.null func) (i32.const 50000))")
        });
        let grow = grow.collect::<String>() + "(i32.const 0)" + &")".repeat(4);
        let text = format!(
            r#"(module (memory (export "memory") 1) {tables}
                (func (export "tables") (result i32) {grow})
                (func (export "memory_too") (result i32) (memory.grow (i32.const 16))))"#
        );
        let engine = tool_engine().expect("an engine");
        let module = Module::new(&engine, wat::parse_str(text).expect("a module"));
        let pre = prelink(&engine, &module.expect("compiled"), |_| Ok(())).expect("linked");
        let files = FileSystem::new(Arc::new(Library::new([])), 1 << 20, 1 << 20);
        let process = Process::program(vec![], vec![], vec![]);
        let guest = Guest::new(process, Arc::new(Mutex::new(files)), 1 << 20);
        let mut machine = Machine::new(&pre, guest).expect("an instance");
        assert_eq!(machine.call("tables", &[]), Ok(1 + 1 - 1 - 1), "two of 400 kB fit");
        assert_eq!(machine.call("memory_too", &[]), Ok(-1), "and leave no room for another 1 MB");
        assert!(machine.guest().was_denied);
    }
}
