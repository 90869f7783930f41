//! Compiling a tool's module, and reporting why it cannot be used.

use wasmtime::{ExternType, Module};

use crate::{Error, machine};

/// The exported function that starts a program.
pub(super) const START: &str = "_start";

/// The first bytes of a component.
const COMPONENT: &[u8] = b"\0asm\x0d\0\x01\0";

/// The key of compiled code, 16 hexadecimal digits. It changes with the module, the engine and the processor: code of
/// the same key can be used.
pub fn tool_key(wasm: &[u8]) -> String {
    crate::key_of(machine::tool_engine(), wasm)
}

/// Compiles a program for WASI preview 1, which may also be in the text format of WebAssembly.
///
/// # Errors
/// If it is not such a program, or imports functions that tools do not have. The message is for the author of its
/// definition.
pub fn compile_tool(wasm: &[u8]) -> Result<Vec<u8>, Error> {
    let refused = |why: &str| Err(Error::Module(why.to_owned()));
    if wasm.starts_with(COMPONENT) {
        return refused("it is a component, and tools are modules of WASI preview 1");
    }
    let wasm = wat::parse_bytes(wasm).map_err(|error| {
        Error::Module(format!("it is neither a module nor the text of one: {error}"))
    })?;
    let engine = machine::tool_engine()?;
    let module = Module::new(&engine, wasm)?;
    let is_function = |name| matches!(module.get_export(name), Some(ExternType::Func(_)));
    if !is_function(START) {
        return refused(
            "it does not export _start, so it is a library or a reactor and not a program",
        );
    }
    if !matches!(module.get_export("memory"), Some(ExternType::Memory(memory)) if !memory.is_64()) {
        return refused("it does not export a memory with 32-bit addresses");
    }
    // The linker reports functions that are missing.
    machine::prelink(&engine, &module, |_| Ok(()))?;
    Ok(module.serialize()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROGRAM: &str = r#"(module (memory (export "memory") 1) (func (export "_start")))"#;

    #[test]
    fn a_program_is_compiled_from_bytes_or_text() {
        let bytes = wat::parse_str(PROGRAM).expect("a module");
        for wasm in [&bytes, PROGRAM.as_bytes()] {
            assert!(!compile_tool(wasm).expect("a program").is_empty());
        }
        assert_ne!(tool_key(&bytes), tool_key(b"another"));
    }

    #[test]
    fn it_is_said_what_is_wrong_with_a_module() {
        let says = |wasm: &[u8], why: &str| {
            let error = compile_tool(wasm).expect_err(why).to_string();
            assert!(error.contains(why), "{error}");
        };
        let wat = |wasm: &str, why: &str| says(wasm.as_bytes(), why);
        says(COMPONENT, "it is a component");
        says(b"\0asm\x01\0\0\0\x07\xff", "cannot use it");
        wat("#!/bin/sh", "neither a module nor the text of one");
        wat(r#"(module (memory (export "memory") 1))"#, "does not export _start");
        wat(r#"(module (func (export "_start")))"#, "does not export a memory");
        wat(r#"(module (memory (export "memory") i64 1) (func (export "_start")))"#, "32-bit");
        let two = r#"(module (memory (export "memory") 1) (memory 1) (func (export "_start")))"#;
        wat(two, "multiple memories");
        let needs = |function: &str| {
            format!(
                r#"(module (import {function} (func)) (memory (export "memory") 1) (func (export "_start")))"#
            )
        };
        wat(&needs(r#""env" "system""#), "env::system");
        // WASI has a function of this name, of another type.
        wat(&needs(r#""wasi_snapshot_preview1" "fd_close""#), "fd_close");
    }
}
