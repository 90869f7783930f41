//! Uploads of tables answer with what is in them, and nothing that a file contains can make that harmful.
//!
//! A summary is made beside everything else and may be missing on a busy machine: the tests upload a file until it has
//! one. That a file has none is only tested after another file has one.

use std::{
    fmt::Write as _,
    io::{Cursor, Write as _},
    path::Path,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use support::{On, Server, assert_fields, containers, http_with, name, on_all, until, web::Web};

on_all! {
    an_upload_of_a_table_says_what_is_in_it,
    a_table_of_a_german_program_is_read_as_it_was_written,
    titles_and_missing_headers_are_found,
    titles_above_the_table_of_a_sheet_are_found,
    the_line_that_tells_excel_the_separator_is_no_row,
    a_type_holds_for_all_values_that_were_read,
    columns_say_from_how_many_rows_they_are_if_not_from_all,
    numbers_and_days_that_can_be_read_in_two_ways_say_so,
    a_file_with_a_wrong_extension_is_summarized_as_what_it_is,
    packed_texts_have_a_summary,
    quotes_may_contain_separators_and_line_ends,
    every_kind_of_table_has_a_summary,
    a_file_that_is_sent_to_an_upload_url_or_with_a_form_has_a_summary,
    a_summary_leaves_the_workspace_as_it_is,
    a_run_in_progress_is_not_disturbed_by_uploads,
    what_a_file_contains_cannot_pass_for_anything_else,
    files_that_are_made_to_harm_have_no_summary_or_a_short_one,
    of_a_large_file_only_the_start_is_read,
    ; on docker alone:
    no_process_is_left_of_a_summary,
}

/// A file of Parquet: `id` 1, 2, 3; `region` North, none, South; `day` three times 2026-01-31.
const PARQUET: &str = "\
    UEFSMRUAFTwVPCwVBhUAFQYVBhwYCAMAAAAAAAAAGAgBAAAAAAAAABYAKAgDAAAAAAAAABgIAQAAAAAAAAAREQAAAA\
    IAAAAGAQEAAAAAAAAAAgAAAAAAAAADAAAAAAAAABUAFTAVMCwVBhUAFQYVBhw2AigFU291dGgYBU5vcnRoEREAAAAC\
    AAAAAwUFAAAATm9ydGgFAAAAU291dGgVABUkFSQsFQYVABUGFQYcGAQEUAAAGAQEUAAAFgAoBARQAAAYBARQAAAREQ\
    AAAAIAAAAGAQRQAAAEUAAABFAAABUCGUw1ABgGc2NoZW1hFQYAFQQlAhgCaWQAFQwlAhgGcmVnaW9uJQBMHAAAABUC\
    JQIYA2RheSUMTGwAAAAWBhkcGTwmABwVBBklBgAZGAJpZBUAFgYWugEWugEmCDwYCAMAAAAAAAAAGAgBAAAAAAAAAB\
    YAKAgDAAAAAAAAABgIAQAAAAAAAAAREQAZHBUAFQAVAgA8KQYZJgAGAAAAJgAcFQwZJQYAGRgGcmVnaW9uFQAWBhZ6\
    FnomwgE8NgIoBVNvdXRoGAVOb3J0aBERABkcFQAVABUCADwWFBkGGSYCBAAAACYAHBUCGSUGABkYA2RheRUAFgYWgg\
    EWggEmvAI8GAQEUAAAGAQEUAAAFgAoBARQAAAYBARQAAAREQAZHBUAFQAVAgA8KQYZJgAGAAAAFrYDFgYmCBa2AwAo\
    IHBhcnF1ZXQtY3BwLWFycm93IHZlcnNpb24gMjYuMC4xGTwcAAAcAAAcAAAAagEAAFBBUjE=";

/// Uploads a file, by the number of attempts until it has a summary.
async fn summary(server: &Server, session: &str, file: &str, content: &[u8]) -> Value {
    let mut found = Value::Null;
    until("the upload has a summary", async || {
        let mut answer = upload(server, session, file, content).await;
        found = answer["summary"].take();
        !found.is_null()
    })
    .await;
    found
}

async fn upload(server: &Server, session: &str, file: &str, content: &[u8]) -> Value {
    let content = STANDARD.encode(content);
    let arguments = json!({
        "session_id": session, "filename": file, "content_base64": content, "overwrite": true,
    });
    server.call("upload_file", arguments).await.ok()
}

fn columns(summary: &Value) -> Vec<&str> {
    let columns = summary["columns"].as_array().expect("columns");
    columns.iter().map(|it| it.as_str().expect("a text")).collect()
}

/// A ZIP file with these parts.
fn zip(parts: &[(&str, &str)]) -> Vec<u8> {
    let mut archive = zip::ZipWriter::new(Cursor::new(vec![]));
    for (path, text) in parts {
        archive.start_file(*path, zip::write::SimpleFileOptions::default()).expect("begun");
        archive.write_all(text.as_bytes()).expect("written");
    }
    archive.finish().expect("whole").into_inner()
}

/// A workbook with two sheets. The content of the first is given.
fn workbook(first: &str) -> Vec<u8> {
    zip(&[
        (
            "xl/workbook.xml",
            r#"<workbook xmlns:r="r"><sheets><sheet name="Sales &amp; more" sheetId="1" r:id="a"/>
            <sheet name="Notes" sheetId="2" r:id="b"/></sheets></workbook>"#,
        ),
        (
            "xl/_rels/workbook.xml.rels",
            r#"<Relationships><Relationship Id="a" Target="worksheets/sheet1.xml"/>
            <Relationship Id="b" Target="/xl/worksheets/sheet2.xml"/></Relationships>"#,
        ),
        (
            "xl/styles.xml",
            r#"<styleSheet><cellXfs><xf numFmtId="0"/><xf numFmtId="14"/></cellXfs></styleSheet>"#,
        ),
        (
            "xl/sharedStrings.xml",
            "<sst><si><t>day</t></si><si><r><t>reg</t></r><r><t>ion</t></r></si><si><t>North</t></si></sst>",
        ),
        ("xl/worksheets/sheet1.xml", first),
        (
            "xl/worksheets/sheet2.xml",
            r#"<worksheet><dimension ref="A1:B8"/><sheetData/></worksheet>"#,
        ),
    ])
}

const SHEET: &str = r#"<worksheet><dimension ref="A1:B3"/><sheetData>
    <row r="1"><c r="A1" t="s"><v>0</v></c><c r="B1" t="s"><v>1</v></c></row>
    <row r="2"><c r="A2" s="1"><v>46053</v></c><c r="B2" t="s"><v>2</v></c></row>
    <row r="3"><c r="A3" s="1"><v>46054</v></c></row></sheetData></worksheet>"#;

async fn an_upload_of_a_table_says_what_is_in_it(on: On) {
    let server = Server::start(on).await;
    let session = name("summary");
    let mut table = "id,Region,revenue,day,paid,code\n".to_owned();
    for n in 1..=1500 {
        let region = ["North", "South", "", "East"][n % 4];
        let (day, paid) = (n % 28 + 1, n % 2 == 0);
        writeln!(table, "{n},{region},{n}.5,2026-01-{day:02},{paid},{n:06}").expect("a text");
    }
    let found = summary(&server, &session, "sales.csv", table.as_bytes()).await;
    assert_eq!(
        found,
        json!({
            "kind": "csv", "encoding": "utf-8", "separator": ",", "rows": 1500,
            "columns_from_first_rows": 999,
            "columns": [
                "id: int: 1 | 2",
                "Region: text, 250 missing: South | East",
                "revenue: float: 1.5 | 2.5",
                "day: date: 2026-01-02 | 2026-01-03",
                "paid: bool: false | true",
                "code: text: 000001 | 000002",
            ],
        })
    );
    for file in ["notes.txt", "chart.png", "csv", "folder.csv/file"] {
        assert_eq!(upload(&server, &session, file, b"a,b\n1,2\n").await["summary"], Value::Null);
    }
    // As text, as well as in base64.
    let mut found = Value::Null;
    until("the text has a summary", async || {
        let arguments = json!({
            "session_id": session, "filename": "a.TSV", "text": "a\tb\n1\tx\n", "overwrite": true,
        });
        found = server.call("upload_file", arguments).await.ok()["summary"].take();
        !found.is_null()
    })
    .await;
    assert_fields!(found, { "kind": "tsv", "separator": "\t", "rows": 1 });
}

async fn a_table_of_a_german_program_is_read_as_it_was_written(on: On) {
    let server = Server::start(on).await;
    let session = name("german");
    let mut table = "Datum;Straße;Umsatz;Menge;Jahr\r\n".to_owned();
    for n in 0..40 {
        let (day, amount) = (n % 28 + 1, n + 100);
        write!(table, "{day}.01.2026;Größe {n};{n}.234,50;1.{amount:03};2026\r\n").expect("a text");
    }
    let latin: Vec<u8> =
        table.chars().map(|c| u8::try_from(u32::from(c)).expect("Latin")).collect();
    let expected = [
        "Datum: date, day first: 1.01.2026 | 2.01.2026",
        "Straße: text: Größe 0 | Größe 1",
        "Umsatz: float: 0.234,50 | 1.234,50",
        "Menge: int: 1.100 | 1.101",
        "Jahr: int: 2026",
    ];
    let utf16: Vec<u8> =
        std::iter::once(0xFEFF).chain(table.encode_utf16()).flat_map(u16::to_le_bytes).collect();
    for (content, encoding) in [
        (latin, "cp1252"),
        (table.clone().into_bytes(), "utf-8"),
        ([b"\xEF\xBB\xBF", table.as_bytes()].concat(), "utf-8-sig"),
        (utf16, "utf-16"),
    ] {
        let found = summary(&server, &session, "umsatz.csv", &content).await;
        assert_fields!(found, {
            "encoding": encoding, "separator": ";", "decimal": ",", "thousands": ".", "rows": 40,
        });
        assert_eq!(columns(&found), expected, "{encoding}");
        // The encoding is that of `read_artifact`.
        let read = json!({ "session_id": session, "path": "umsatz.csv" });
        let read = server.call("read_artifact", read).await.ok();
        let named = read["encoding"].as_str().unwrap_or("utf-8");
        assert_eq!(named, encoding);
    }
}

async fn titles_and_missing_headers_are_found(on: On) {
    let server = Server::start(on).await;
    let session = name("shape");
    let table = format!("Report of sales\nmade in 2026\n\na;b\n{}", "1;x\n".repeat(20));
    let found = summary(&server, &session, "a.csv", table.as_bytes()).await;
    assert_fields!(found, { "header_line": 4, "separator": ";", "rows": 20 });
    assert_eq!(columns(&found), ["a: int: 1", "b: text: x"]);

    let found = summary(&server, &session, "b.csv", b"1,2026-01-31,x\n2,2026-02-01,y\n").await;
    assert_fields!(found, { "header": false, "rows": 2 });
    assert_eq!(columns(&found)[0], "column 1: int: 1 | 2");

    // Years are usual names of columns.
    let found =
        summary(&server, &session, "c.csv", b"Region,2024,2025\nNorth,1,2\nSouth,3,4\n").await;
    assert_eq!((&found["header"], columns(&found)[1]), (&Value::Null, "2024: int: 1 | 3"));

    let found = summary(&server, &session, "d.csv", b"id\n1\n\n2\n").await;
    assert_eq!((&found["rows"], columns(&found)), (&json!(2), vec!["id: int: 1 | 2"]));
}

/// A sheet of these rows, by their numbers. Numbers and texts become cells, and empty texts none.
fn sheet(rows: &[(usize, Vec<String>)]) -> String {
    let mut sheet = "<worksheet><sheetData>".to_owned();
    for (number, cells) in rows {
        write!(sheet, "<row r=\"{number}\">").expect("a text");
        for (letter, cell) in ('A'..='Z').zip(cells).filter(|(_, cell)| !cell.is_empty()) {
            let place = format!("r=\"{letter}{number}\"");
            let cell = if cell.parse::<f64>().is_ok() {
                format!("<c {place}><v>{cell}</v></c>")
            } else {
                format!("<c {place} t=\"inlineStr\"><is><t>{cell}</t></is></c>")
            };
            sheet.push_str(&cell);
        }
        sheet.push_str("</row>");
    }
    sheet + "</sheetData></worksheet>"
}

async fn titles_above_the_table_of_a_sheet_are_found(on: On) {
    let server = Server::start(on).await;
    let session = name("titles");
    let row = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
    let mut rows = vec![
        (1, row("Monthly marketing report")),
        (2, row("Source: CRM,2026")),
        (5, row("Region,Revenue,Clicks,Note")),
    ];
    // The last cells of some rows are missing, and a note is beside the table.
    rows.extend((6..106).map(|n| (n, row(&format!("North,{n}.5,{n},{}", ["x", ""][n % 2])))));
    rows[40].1.push("look".into());
    let found = summary(&server, &session, "report.xlsx", &workbook(&sheet(&rows))).await;
    assert_fields!(found, { "kind": "xlsx", "header_line": 5, "rows": 100 });
    let starts = [
        "Region: text: North",
        "Revenue: float: 6.5",
        "Clicks: int: 6",
        "Note: text, 50 missing: x",
        "column 5: text, 99 missing: look",
    ];
    let found = columns(&found);
    assert!(
        found.len() == 5 && found.iter().zip(starts).all(|(it, start)| it.starts_with(start)),
        "{found:?}"
    );
    // A list of one column, with a note, begins with its first row.
    let mut rows: Vec<_> = (2..30).map(|n| (n - 1, row(&format!("name {n}")))).collect();
    rows[0].1 = row("Name");
    rows[20].1.push("look".into());
    let found = summary(&server, &session, "list.xlsx", &workbook(&sheet(&rows))).await;
    assert_fields!(found, { "header_line": null, "rows": 27 });
    assert_eq!(columns(&found)[0], "Name: text: name 3 | name 4 | name 5", "{found}");

    let rows = [(3, row("a,b")), (4, row("1,x"))];
    let found = summary(&server, &session, "row.xlsx", &workbook(&sheet(&rows))).await;
    assert_fields!(found, { "header_line": 3, "rows": 1 });
    assert_eq!(found["sheets"][0], "Sales & more: 1 row");
}

async fn the_line_that_tells_excel_the_separator_is_no_row(on: On) {
    let server = Server::start(on).await;
    let session = name("told");
    for (table, separator, line) in [
        ("sep=;\r\nid;name\r\n1;a,b\r\n2;c,d\r\n", ";", 2),
        ("\"sep=|\"\nid|name\n1|a,b\n2|c,d\n", "|", 2),
        // A separator that is recognized only so, and a title.
        ("\u{feff}SEP=^\nTitle\n\nid^name\n1^a,b\n2^c,d\n", "^", 4),
    ] {
        let found = summary(&server, &session, "a.csv", table.as_bytes()).await;
        assert_fields!(found, { "separator": separator, "header_line": line, "rows": 2 });
        assert_eq!(columns(&found), ["id: int: 1 | 2", "name: text: a,b | c,d"]);
    }
}

async fn a_type_holds_for_all_values_that_were_read(on: On) {
    let server = Server::start(on).await;
    let session = name("types");
    let table = |first: fn(usize) -> String, last: &str| {
        let rows: Vec<_> = (0..200).map(|n| format!("{n};{}\n", first(n))).collect();
        format!("id;v\n{}200;{last}\n", rows.concat())
    };
    let number: fn(usize) -> String = |n| (n + 1).to_string();
    let day: fn(usize) -> String = |n| format!("{}.{}.2026", n % 28 + 1, n % 12 + 1);
    let time: fn(usize) -> String = |n| format!("{}:{:02}", n / 60, n % 60);
    let cases = [
        (number, "7", "int"),
        (number, "broken", "text"),
        (number, "0123", "text"),
        (number, "-1.5", "float"),
        // Only the last value shows how numbers are written.
        (number, "1,5", "float"),
        (number, "1.234.567", "int"),
        (day, "unknown", "text"),
        (day, "31.1.2026", "date, day first"),
        (time, "later", "text"),
    ];
    for (first, last, kind) in cases {
        let found = summary(&server, &session, "a.csv", table(first, last).as_bytes()).await;
        let start = format!("v: {kind}: {}", first(0));
        assert!(columns(&found)[1].starts_with(&start), "{last}: {found}");
        let decimal = (last == "1,5").then_some(",");
        assert_eq!(found["decimal"].as_str(), decimal, "{found}");
    }
    let record = |n| json!({ "day": format!("2026-01-{:02} 10:{:02}", n % 28 + 1, n % 60) });
    let mut records: Vec<_> = (0..200).map(record).collect();
    records.push(json!({ "day": "unknown" }));
    let records = Value::from(records).to_string();
    let found = summary(&server, &session, "a.json", records.as_bytes()).await;
    assert!(columns(&found)[0].starts_with("day: text"), "{found}");
}

async fn columns_say_from_how_many_rows_they_are_if_not_from_all(on: On) {
    let server = Server::start(on).await;
    let session = name("rows");
    let long = format!("id,v\n{}{}", "1,2\n".repeat(3000), "1,\n".repeat(30));
    let found = summary(&server, &session, "a.csv", long.as_bytes()).await;
    assert_fields!(found, { "rows": 3030, "columns_from_first_rows": 999 });
    assert_eq!(columns(&found)[1], "v: int: 2");
    let short = format!("id,v\n{}{}", "1,2\n".repeat(300), "1,\n".repeat(30));
    let found = summary(&server, &session, "a.csv", short.as_bytes()).await;
    assert_fields!(found, { "rows": 330, "columns_from_first_rows": null });
    assert_eq!(columns(&found)[1], "v: int, 30 missing: 2");
    // A key that comes later is no column yet.
    let lines = "{\"a\": 1}\n".repeat(1500) + "{\"a\": 1, \"b\": 2}\n";
    let found = summary(&server, &session, "a.jsonl", lines.as_bytes()).await;
    assert_fields!(found, { "rows": 1501, "columns_from_first_rows": 1000, "columns": ["a: int: 1"] });
}

async fn numbers_and_days_that_can_be_read_in_two_ways_say_so(on: On) {
    let server = Server::start(on).await;
    let session = name("unsure");
    for (table, expected) in [
        ("id;v\n1;1.234\n2;2.500\n3;3.750\n", "v: float, may be thousands: 1.234 | 2.500 | 3.750"),
        ("id;v\n1;1,234\n2;2,500\n", "v: float, may be thousands: 1,234 | 2,500"),
        // Another column, or value, shows what the point is.
        ("id;w;v\n1;0.5;1.234\n2;2.5;2.500\n", "v: float: 1.234 | 2.500"),
        ("id;v\n1;0.234\n2;2.500\n", "v: float: 0.234 | 2.500"),
        ("id,v\n1,1.234\n2,2.500\n", "v: float: 1.234 | 2.500"),
        ("id,v\n1,\"1,234\"\n2,\"2,500\"\n", "v: int: 1,234 | 2,500"),
        (
            "id;v\na;01/02/2024\nb;03/04/2024\n",
            "v: date, day or month first: 01/02/2024 | 03/04/2024",
        ),
        ("id;v\na;01/02/2024\nb;13/02/2024\n", "v: date, day first: 01/02/2024 | 13/02/2024"),
        ("id;v\na;1/2/2024 10:30\n", "v: datetime, day or month first: 1/2/2024 10:30"),
    ] {
        let found = summary(&server, &session, "a.csv", table.as_bytes()).await;
        assert_eq!(columns(&found).last(), Some(&expected), "{found}");
    }
}

async fn a_file_with_a_wrong_extension_is_summarized_as_what_it_is(on: On) {
    let server = Server::start(on).await;
    let session = name("wrong");
    let parquet = STANDARD.decode(PARQUET).expect("base64");
    let book = workbook(SHEET);
    let text = b"id;name\n1;x\n2;y\n".to_vec();
    let records = br#"[{"id": 1}, {"id": 2}]"#.to_vec();
    for (file, content, kind, column) in [
        ("a.csv", &parquet, "parquet", "id: int"),
        ("b.csv", &book, "xlsx", "day: date"),
        ("b.parquet", &book, "xlsx", "day: date"),
        ("c.xlsx", &text, "csv", "id: int"),
        ("c.parquet", &text, "csv", "id: int"),
        ("c.json", &text, "csv", "id: int"),
        ("d.xlsx", &records, "json", "id: int"),
    ] {
        let found = summary(&server, &session, file, content).await;
        assert_eq!(found["kind"], kind, "{file}: {found}");
        assert!(columns(&found)[0].starts_with(column), "{file}: {found}");
    }
    // A page that was saved instead of a table is none, nor are words.
    for page in [
        "<!DOCTYPE html>\n<p>a, b</p>\n<p>c, d</p>\n",
        "No such report.\n",
        "%PDF-1.7\n\u{1},\n,\n",
    ] {
        let answer = upload(&server, &session, "e.xlsx", page.as_bytes()).await;
        assert_eq!(answer["summary"], Value::Null, "{page}");
    }
}

/// Packs bytes as gzip does.
fn gzip(content: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(vec![], flate2::Compression::default());
    packed.write_all(content).expect("written");
    packed.finish().expect("whole")
}

async fn packed_texts_have_a_summary(on: On) {
    let server = Server::start(on).await;
    let session = name("packed");
    let table = "id;Straße\n1;x\n2;y\n";
    let utf16: Vec<u8> =
        std::iter::once(0xFEFF).chain(table.encode_utf16()).flat_map(u16::to_le_bytes).collect();
    let latin: Vec<u8> =
        table.chars().map(|c| u8::try_from(u32::from(c)).expect("Latin")).collect();
    let (first, second) = table.as_bytes().split_at(14);
    for (content, encoding) in [
        (gzip(table.as_bytes()), "utf-8"),
        (gzip(&utf16), "utf-16"),
        (gzip(&latin), "cp1252"),
        // Programs that pack in parallel write several members.
        ([gzip(first), gzip(second)].concat(), "utf-8"),
    ] {
        let found = summary(&server, &session, "a.csv.gz", &content).await;
        assert_eq!(
            found,
            json!({
                "kind": "csv", "compression": "gzip", "encoding": encoding, "separator": ";", "rows": 2,
                "columns": ["id: int: 1 | 2", "Straße: text: x | y"],
            })
        );
    }
    let lines = [1, 2].map(|n| format!("{{\"a\": {n}{}}}\n", " ".repeat(100))).concat();
    let lines = gzip(&lines.into_bytes().repeat(10_000));
    let found = summary(&server, &session, "A.JSONL.GZ", &lines).await;
    assert_fields!(found, {
        "kind": "json_lines", "compression": "gzip", "columns": ["a: int: 1 | 2"],
    });
    let rows = found["rows_at_least"].as_u64().expect("a number");
    assert!((5000..20_000).contains(&rows), "{found}");
    // The name may leave it out.
    let found = summary(&server, &session, "a.csv", &gzip(table.as_bytes())).await;
    assert_fields!(found, { "kind": "csv", "compression": "gzip", "rows": 2 });
}

async fn quotes_may_contain_separators_and_line_ends(on: On) {
    let server = Server::start(on).await;
    let session = name("quotes");
    let table = "a,note,b\r\n1,\"one, \"\"two\"\"\r\nthree\",x\r\n2,\"\n\n\",y\r\n";
    let found = summary(&server, &session, "a.csv", table.as_bytes()).await;
    assert_eq!(found["rows"], 2, "{found}");
    assert_eq!(
        columns(&found)[..2],
        ["a: int: 1 | 2", "note: text, 1 missing: one, \"two\" three"]
    );
}

async fn every_kind_of_table_has_a_summary(on: On) {
    let server = Server::start(on).await;
    let session = name("kinds");
    let found = summary(&server, &session, "book.xlsx", &workbook(SHEET)).await;
    assert_eq!(
        found,
        json!({
            "kind": "xlsx", "rows": 2, "sheets": ["Sales & more: 2 rows", "Notes: 7 rows"],
            "columns": ["day: date: 2026-01-31 | 2026-02-01", "region: text, 1 missing: North"],
        })
    );
    let parquet = STANDARD.decode(PARQUET).expect("base64");
    let found = summary(&server, &session, "a.parquet", &parquet).await;
    assert_fields!(found, { "kind": "parquet", "rows": 3 });
    assert!(columns(&found)[0].starts_with("id: int: 1"), "{found}");
    assert_eq!(columns(&found)[1], "region: text, 1 missing: North | South");
    assert_eq!(columns(&found)[2], "day: date: 2026-01-31");

    let records = r#"[{"a": 1, "when": "2026-01-31T10:00:00Z"}, {"a": 2.5, "b": [1]}, {"a": NaN}]"#;
    let found = summary(&server, &session, "a.json", records.as_bytes()).await;
    assert_eq!(
        found,
        json!({
            "kind": "json", "encoding": "utf-8", "rows": 3,
            "columns": [
                "a: float, 1 missing: 1 | 2.5",
                "when: datetime, 2 missing: 2026-01-31T10:00:00Z",
                "b: list, 2 missing: [1]",
            ],
        })
    );
    let object = r#"{"total": 2, "data": [{"x": "one"}, {"x": "two"}]}"#;
    let found = summary(&server, &session, "b.json", object.as_bytes()).await;
    assert_fields!(found, { "within": "data", "rows": 2, "columns": ["x: text: one | two"] });

    let lines = "{\"a\": 1}\n\n{\"a\": 2}\n";
    for file in ["a.jsonl", "a.ndjson", "lines.json"] {
        let found = summary(&server, &session, file, lines.as_bytes()).await;
        assert_fields!(found, { "kind": "json_lines", "rows": 2, "columns": ["a: int: 1 | 2"] });
    }
}

async fn a_file_that_is_sent_to_an_upload_url_or_with_a_form_has_a_summary(on: On) {
    let (_web, caller) = Web::open(on, &[]).await;
    let session = name("sent");
    let arguments = json!({ "session_id": session, "filename": "a.csv", "overwrite": true });
    let asked = caller.call("upload_file", arguments).await.ok();
    assert_eq!(asked["summary"], Value::Null, "there is no file yet");
    let url = asked["upload_url"].as_str().expect("a URL").to_owned();
    let mut found = Value::Null;
    until("the answer to a PUT has a summary", async || {
        let answer = http_with("PUT", &url, &[], b"a,b\n1,x\n").await;
        assert!(matches!(answer.status, 200 | 201), "{}", answer.json());
        found = answer.json()["summary"].take();
        !found.is_null()
    })
    .await;
    let columns = ["a: int: 1", "b: text: x"];
    assert_fields!(found, { "kind": "csv", "rows": 1, "columns": columns });
    let form = "--b0undary\r\nContent-Disposition: form-data; name=\"f\"; filename=\"b.csv\"\r\n\r\n\
                a,b\n1,x\n\r\n--b0undary\r\nContent-Disposition: form-data; name=\"g\"; \
                filename=\"c.txt\"\r\n\r\ntext\r\n--b0undary--\r\n";
    until("the answer to a form has a summary", async || {
        let kind = [("Content-Type", "multipart/form-data; boundary=b0undary")];
        let answer =
            caller.send("POST", &format!("/files/{session}"), &kind, form.as_bytes()).await;
        assert!(matches!(answer.status, 200 | 201), "{}", answer.json());
        assert_eq!(answer.json()["files"][1]["summary"], Value::Null);
        found = answer.json()["files"][0]["summary"].take();
        !found.is_null()
    })
    .await;
    assert_fields!(found, { "kind": "csv", "rows": 1, "columns": columns });
}

async fn a_summary_leaves_the_workspace_as_it_is(on: On) {
    let server = Server::start(on).await;
    let session = name("workspace");
    server.cell(&session, "x = 41").await.ok();
    summary(&server, &session, "a.csv", b"a,b\n1,x\n").await;
    let cell = server.cell(&session, "x += 1\nx").await.ok();
    assert_eq!(cell["result"], "42", "{cell}");
    let info = json!({ "session_id": session });
    let info = server.call("get_workspace_info", info).await.ok();
    assert_eq!(info["execution_count"], 2, "{info}");
    let ran = server
        .run(&session, "import os; print(sorted(os.listdir()), sorted(os.listdir('/tmp')))")
        .await;
    assert!(ran["stdout"].as_str().is_some_and(|text| text.starts_with("['a.csv']")), "{ran}");
}

async fn a_run_in_progress_is_not_disturbed_by_uploads(on: On) {
    let server = Server::start(on).await;
    let session = name("busy");
    summary(&server, &session, "a.csv", b"a,b\n1,x\n").await;
    let code = "import os, time\nprint('begun', flush=True)\nwhile not os.path.exists('go.csv'): time.sleep(0.01)\nprint('done')";
    let (_, run) = server.begin("run_python", json!({ "session_id": session, "code": code }));
    until("the run is in progress", async || {
        upload(&server, &session, "b.csv", b"a,b\n1,x\n").await["summary"].is_null()
    })
    .await;
    upload(&server, &session, "go.csv", b"a,b\n1,x\n").await;
    let ran = support::answered(run).await;
    let ran = support::Answer::new(ran["result"].clone()).ok();
    assert_fields!(ran, { "stdout": "begun\ndone\n", "exit_code": 0 });
    summary(&server, &session, "b.csv", b"a,b\n1,x\n").await;
}

async fn what_a_file_contains_cannot_pass_for_anything_else(on: On) {
    let server = Server::start(on).await;
    let session = name("hostile");
    let long = "x".repeat(500);
    let table =
        format!("\u{1b}[2Ja,\u{202e}b,\"c\nd\",{long}\n1,\u{feff}\u{7}2,\"e\n\n\tf\",{long}\n");
    let found = summary(&server, &session, "a.csv", table.as_bytes()).await;
    assert_eq!(
        columns(&found),
        [
            "\u{fffd}[2Ja: int: 1",
            "\u{fffd}b: text: \u{fffd}\u{fffd}2",
            "c d: text: e f",
            &format!("{}…: text: {}…", &long[..39], &long[..19]),
        ]
    );
    let bytes = b"a,b\n\xff\xfe\x80,1\n\xc3\x28,2\n";
    let found = summary(&server, &session, "a.csv", bytes).await;
    assert_eq!(found["rows"], 2, "{found}");
}

/// Files that are made to harm whoever reads them.
fn harmful() -> Vec<(&'static str, Vec<u8>)> {
    let inflated = "0".repeat(60 << 20);
    let rows = format!("<worksheet><sheetData><row><c><v>{inflated}");
    let texts = "<row><c t=\"inlineStr\"><is><t>x</t></is></c></row>".repeat(300_000);
    let bomb = workbook(&rows);
    let entities = r#"<!DOCTYPE a [<!ENTITY b "bbbbbbbbbb"><!ENTITY c "&b;&b;&b;&b;&b;">]><worksheet>&c;</worksheet>"#;
    let mut lying = STANDARD.decode(PARQUET).expect("base64");
    let end = lying.len() - 8;
    let whole = u32::try_from(end - 4).expect("short").to_le_bytes();
    let mut beyond = lying.clone();
    beyond[end..end + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    lying[end..end + 4].copy_from_slice(&whole);
    let thrift =
        |byte: u8| [b"PAR1", &vec![byte; 100_000][..], &100_000u32.to_le_bytes(), b"PAR1"].concat();
    let mut cut = bomb.clone();
    cut.truncate(bomb.len() / 2);
    vec![
        ("columns.csv", ",".repeat(3 << 20).into_bytes()),
        (
            "columns.json",
            format!(
                "[{{{}\"z\":1}}]",
                (0..80_000).map(|n| format!("\"{n}\":1,")).collect::<Vec<_>>().concat()
            )
            .into_bytes(),
        ),
        ("line.csv", vec![b'x'; 3 << 20]),
        ("quote.csv", [&b"a,b\n\""[..], &vec![b'x'; 2 << 20]].concat()),
        ("zeros.csv", vec![0; 2 << 20]),
        ("empty.csv", vec![]),
        ("blank.csv", b"\n\n \n".to_vec()),
        ("deep.json", "[".repeat(900_000).into_bytes()),
        ("deep.jsonl", format!("{}\n", "{\"a\":".repeat(100_000)).into_bytes()),
        ("number.json", format!("[{}]", "9".repeat(900_000)).into_bytes()),
        ("huge.json", b"[1e999999, -Infinity, NaN, 123456789012345678901234567890]".to_vec()),
        ("bomb.xlsx", bomb),
        ("rows.xlsx", workbook(&format!("<worksheet><sheetData>{texts}"))),
        ("entities.xlsx", workbook(entities)),
        ("nested.xlsx", zip(&[("xl/workbook.xml", "PK\x03\x04")])),
        ("parts.xlsx", zip(&[("a", "b")])),
        ("cut.xlsx", cut),
        ("not.xls", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1 and nothing else".to_vec()),
        ("lying.parquet", lying),
        ("beyond.parquet", beyond),
        ("lists.parquet", thrift(0x19)),
        ("structs.parquet", thrift(0x1c)),
        ("numbers.parquet", thrift(0xff)),
        ("short.parquet", b"PAR1".to_vec()),
        ("bomb.csv.gz", gzip(&vec![b','; 30 << 20])),
        ("members.csv.gz", gzip(b"").repeat(100_000)),
        ("cut.csv.gz", gzip(b"a,b\n1,2\n")[..20].to_vec()),
        ("damaged.csv.gz", [b"\x1f\x8b\x08", &[0xff; 1000][..]].concat()),
        ("text.parquet", vec![b'x'; 2 << 20]),
    ]
}

async fn files_that_are_made_to_harm_have_no_summary_or_a_short_one(on: On) {
    let server = Server::start(on).await;
    let session = name("harmful");
    let good: &[u8] = b"a,b\n1,x\n";
    summary(&server, &session, "good.csv", good).await;
    for (file, content) in harmful() {
        let answer = upload(&server, &session, file, &content).await;
        assert_eq!(answer["size_bytes"], content.len(), "{file}");
        let length = answer["summary"].to_string().len();
        assert!(length < 1500, "{file}: {answer}");
        // Whatever it was, the next summary and the next run are what they would have been.
        summary(&server, &session, "good.csv", good).await;
    }
    // A link that a program puts in the place of a file is not followed.
    let ran =
        server.run(&session, "import os\nos.symlink('good.csv', 'link.csv')\nprint(2 + 2)").await;
    assert_fields!(ran, { "stdout": "4\n", "exit_code": 0 });
    let link = json!({ "session_id": session, "path": "link.csv" });
    assert_eq!(server.call("list_artifacts", link).await.error(), "invalid_path");
}

async fn no_process_is_left_of_a_summary() {
    let server = Server::start(On::Docker).await;
    let session = name("left");
    summary(&server, &session, "good.csv", b"a,b\n1,x\n").await;
    let container = containers(&session).remove(0);
    // Such a process is there for less than a third of a second, so the engine is too slow to list it.
    let is_summary = |process: &Path| {
        let read = |file: &str| std::fs::read_to_string(process.join(file)).unwrap_or_default();
        read("comm").contains("summary") && read("cgroup").contains(&container)
    };
    let is_there = async || {
        let all = std::fs::read_dir("/proc").expect("the processes of this machine");
        all.flatten().any(|process| is_summary(&process.path()))
    };
    let slow = format!("[{}]", "9".repeat(900_000)).into_bytes();
    tokio::select! {
        () = until("a process is seen that makes a summary", &is_there) => {}
        () = async { loop { upload(&server, &session, "slow.json", &slow).await; } } => {}
    }
    for (file, content) in harmful() {
        upload(&server, &session, file, &content).await;
    }
    until("no process is left", async || !is_there().await).await;
}

async fn of_a_large_file_only_the_start_is_read(on: On) {
    let server = Server::start(on).await;
    let session = name("large");
    let row = "1,North,2026-01-31,some words that make it longer\n";
    let table = format!("id,region,day,note\n{}", row.repeat((3 << 20) / row.len()));
    let found = summary(&server, &session, "a.csv", table.as_bytes()).await;
    let rows = found["rows_at_least"].as_u64().expect("a number");
    assert!((10_000..30_000).contains(&rows) && found["rows"].is_null(), "{found}");
    let records = format!("[{}{{}}]", "{\"a\": 1, \"b\": \"x\"},".repeat(100_000));
    let found = summary(&server, &session, "a.json", records.as_bytes()).await;
    assert!(found["rows_at_least"].as_u64() >= Some(1000), "{found}");
}
