//! Changes to a guest's module before it is compiled, so that the state of an instance can be saved and restored: its
//! mutable globals are exported, and its memory starts empty.
//!
//! The initial contents of the memory are returned separately. They are written once, when the image is made, and are
//! part of the image from then on.

use wasm_encoder::{
    ConstExpr, DataSection, ExportKind, ExportSection, Module, RawSection, reencode::Reencode,
};
use wasmparser::{DataKind, Operator, Parser, Payload};

use crate::Error;

/// Prefix of the names under which globals are exported.
pub(crate) const GLOBAL: &str = "llm-sandbox:global:";

/// A module that is ready to be compiled.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// The module.
    pub(crate) wasm: Vec<u8>,
    /// The initial contents of its memory: offsets and bytes.
    pub(crate) data: Vec<(u32, Vec<u8>)>,
}

/// Exports the mutable globals of a module, and extracts its data.
pub(crate) fn prepare(wasm: &[u8]) -> Result<Prepared, Error> {
    let mut module = Module::new();
    let mut data = vec![];
    let mut mutable = vec![];
    let mut global = 0;
    for payload in Parser::new(0).parse_all(wasm) {
        let payload = payload.map_err(malformed)?;
        match &payload {
            Payload::ImportSection(imports) => {
                for import in imports.clone().into_imports() {
                    if matches!(import.map_err(malformed)?.ty, wasmparser::TypeRef::Global(_)) {
                        global += 1;
                    }
                }
            }
            Payload::GlobalSection(globals) => {
                for declared in globals.clone() {
                    if declared.map_err(malformed)?.ty.mutable {
                        mutable.push(global);
                    }
                    global += 1;
                }
            }
            Payload::ExportSection(exports) => {
                let mut all = ExportSection::new();
                wasm_encoder::reencode::RoundtripReencoder
                    .parse_export_section(&mut all, exports.clone())
                    .map_err(|error| malformed(error.to_string()))?;
                for index in &mutable {
                    all.export(&format!("{GLOBAL}{index}"), ExportKind::Global, *index);
                }
                module.section(&all);
                continue;
            }
            Payload::DataSection(segments) => {
                let mut all = DataSection::new();
                for segment in segments.clone() {
                    let segment = segment.map_err(malformed)?;
                    match segment.kind {
                        DataKind::Passive => {
                            all.passive(segment.data.iter().copied());
                        }
                        DataKind::Active { offset_expr, .. } => {
                            data.push((constant(&offset_expr)?, segment.data.to_vec()));
                            all.active(0, &ConstExpr::i32_const(0), []);
                        }
                    }
                }
                module.section(&all);
                continue;
            }
            Payload::CustomSection(_) => continue,
            _ => {}
        }
        if let Some((id, range)) = payload.as_section() {
            module.section(&RawSection { id, data: &wasm[range] });
        }
    }
    Ok(Prepared { wasm: module.finish(), data })
}

/// The value of a constant expression.
fn constant(expression: &wasmparser::ConstExpr<'_>) -> Result<u32, Error> {
    match expression.get_operators_reader().read().map_err(malformed)? {
        Operator::I32Const { value } => Ok(value.cast_unsigned()),
        _ => Err(malformed("its data has no constant place")),
    }
}

fn malformed(error: impl ToString) -> Error {
    Error::Module(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globals_are_exported_and_data_is_given_apart() {
        use wasm_encoder::{GlobalSection, GlobalType, MemorySection, MemoryType, ValType};

        let mut module = Module::new();
        let memory = MemoryType {
            minimum: 1,
            maximum: None,
            memory64: false,
            shared: false,
            page_size_log2: None,
        };
        module.section(MemorySection::new().memory(memory));
        let global = |mutable| GlobalType { val_type: ValType::I32, mutable, shared: false };
        let mut globals = GlobalSection::new();
        globals.global(global(false), &ConstExpr::i32_const(1));
        globals.global(global(true), &ConstExpr::i32_const(2));
        module.section(&globals);
        module.section(ExportSection::new().export("memory", ExportKind::Memory, 0));
        module.section(DataSection::new().active(0, &ConstExpr::i32_const(7), *b"text"));
        let prepared = prepare(&module.finish()).expect("valid");
        assert_eq!(prepared.data, [(7, b"text".to_vec())]);
        let text = String::from_utf8_lossy(&prepared.wasm).into_owned();
        assert!(text.contains(&format!("{GLOBAL}1")) && !text.contains("text"), "{text}");
        wasmparser::validate(&prepared.wasm).expect("still a module");
    }

    #[test]
    fn what_is_no_module_is_refused() {
        for bytes in [&b""[..], b"text", b"\0asm\x01\0\0\0\x07\xff"] {
            assert!(matches!(prepare(bytes), Err(Error::Module(_))), "{bytes:?}");
        }
    }
}
