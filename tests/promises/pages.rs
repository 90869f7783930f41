//! Pages of PDF documents, which a model looks at as pictures, and documents that are made to harm.

use std::process::Command;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use support::{Answer, On, Server, name, on_both, text, until};

on_both! {
    a_page_of_a_document_comes_as_a_picture,
    a_document_that_cannot_be_shown_is_answered_with_the_reason,
    a_page_of_an_office_document_needs_a_recipe_that_the_answer_names,
}

mod wasm {
    use super::*;

    support::tests! {
        a_page_is_refused_with_what_to_do_instead =>
            super::a_page_is_refused_with_what_to_do_instead(On::Wasm);
    }
}

/// A document of so many pages with this content and size, in points. `more` is a part of its trailer.
fn document(pages: usize, size: &str, content: &str, more: &str) -> Vec<u8> {
    let kids: Vec<_> = (0..pages).map(|n| format!("{} 0 R", 4 + 2 * n)).collect();
    let mut objects = vec![
        "<</Type/Catalog/Pages 2 0 R>>".to_owned(),
        format!("<</Type/Pages/Count {pages}/Kids[{}]>>", kids.join(" ")),
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>".to_owned(),
    ];
    for n in 0..pages {
        objects.push(format!(
            "<</Type/Page/Parent 2 0 R/MediaBox[0 0 {size}]/Contents {} 0 R\
             /Resources<</Font<</F1 3 0 R>>>>>>",
            5 + 2 * n
        ));
        objects.push(format!("<</Length {}>>stream\n{content}\nendstream", content.len()));
    }
    let mut file = "%PDF-1.4\n".to_owned();
    let mut table = String::new();
    for (at, object) in objects.iter().enumerate() {
        table.extend([format!("{:010} 00000 n \n", file.len())]);
        file.extend([format!("{} 0 obj{object} endobj\n", at + 1)]);
    }
    let (start, count) = (file.len(), objects.len() + 1);
    let end = format!(
        "xref\n0 {count}\n0000000000 65535 f \n{table}trailer<</Size {count}/Root 1 0 R{more}>>\n\
         startxref\n{start}\n%%EOF"
    );
    (file + &end).into_bytes()
}

const HELLO: &str = "BT /F1 24 Tf 72 700 Td (Hello) Tj ET";
const LETTER: &str = "612 792";

/// Whether pages can be drawn: on plain processes only if the host's Python has the library.
fn can_draw(on: On) -> bool {
    let has_library = || {
        let mut python = Command::new("python3");
        python.args(["-c", "import pypdfium2"]).output().is_ok_and(|it| it.status.success())
    };
    on != On::Local || has_library()
}

async fn upload(server: &Server, session: &str, file: &str, content: &[u8]) {
    let content = STANDARD.encode(content);
    let file = json!({ "session_id": session, "filename": file, "content_base64": content });
    server.call("upload_file", file).await.ok();
}

async fn read(server: &Server, session: &str, file: &str, page: Value) -> Answer {
    let mut arguments = json!({ "session_id": session, "path": file });
    if !page.is_null() {
        arguments["page"] = page;
    }
    server.call("read_artifact", arguments).await
}

async fn a_page_of_a_document_comes_as_a_picture(on: On) {
    let server = Server::start(on).await;
    let session = name("page");
    upload(&server, &session, "report.pdf", &document(7, LETTER, HELLO, "")).await;
    let whole = read(&server, &session, "report.pdf", Value::Null).await.ok();
    assert_eq!(whole["kind"], "PDF document", "{whole}");
    let shown = read(&server, &session, "report.pdf", json!(2)).await;
    if !can_draw(on) {
        assert_eq!(shown.error(), "invalid_argument");
        assert!(text(&shown.json["message"]).contains("pypdfium2 is not installed"));
        return;
    }
    let images = shown.blocks("image");
    assert_eq!((images.len(), &images[0]["mimeType"]), (1, &json!("image/png")));
    let image = STANDARD.decode(text(&images[0]["data"])).expect("base64");
    let image = image::load_from_memory(&image).expect("an image").to_luma8();
    assert_eq!((image.width(), image.height()), (1212, 1568));
    let dark = image.pixels().filter(|it| it.0[0] < 128).count();
    assert!((500..50_000).contains(&dark), "{dark}");
    let shown = shown.ok();
    assert_eq!((&shown["page"], &shown["pages"]), (&json!(2), &json!(7)), "{shown}");
    assert_eq!(shown.get("content_base64"), None);
    // The answer without a page says how many there are, if they were counted in time.
    let mut whole = Value::Null;
    until("the pages are counted", async || {
        whole = read(&server, &session, "report.pdf", Value::Null).await.ok();
        !whole["pages"].is_null()
    })
    .await;
    assert_eq!(whole["pages"], 7, "{whole}");
    assert!(text(&whole["advice"]).starts_with("page shows one of its pages. "), "{whole}");
    // The workspace is as before.
    assert_eq!(server.run(&session, "print(1)").await["stdout"], "1\n");
}

async fn a_document_that_cannot_be_shown_is_answered_with_the_reason(on: On) {
    if !can_draw(on) {
        return;
    }
    let server = Server::start(on).await;
    let session = name("harm");
    let encrypted = format!(
        "/ID[<00><00>]/Encrypt<</Filter/Standard/V 1/R 2/P -4/O<{}>/U<{}>>>",
        "11".repeat(32),
        "22".repeat(32)
    );
    let endless = "q 1 0 0 1 0 0 cm\n".repeat(60_000) + &"0 0 100 100 re f\n".repeat(300_000);
    let cases = [
        (document(3, LETTER, HELLO, ""), 4, "this PDF has 3 pages."),
        (document(1, LETTER, HELLO, &encrypted), 1, "this PDF is encrypted."),
        (b"%PDF-1.4 and no more".to_vec(), 1, "no PDF or Office document, or a broken one."),
        (b"a,b\n1,2\n".to_vec(), 1, "no PDF or Office document, or a broken one."),
        (vec![], 1, "no PDF or Office document, or a broken one."),
        (document(1, LETTER, &endless, ""), 1, "too much memory or time."),
    ];
    for (at, (file, page, why)) in cases.into_iter().enumerate() {
        let name = format!("{at}.pdf");
        upload(&server, &session, &name, &file).await;
        let refused = read(&server, &session, &name, json!(page)).await;
        assert_eq!(refused.error(), "invalid_argument", "{name}");
        assert!(text(&refused.json["message"]).contains(why), "{}", refused.json);
    }
    // Pages of any size, and documents of many pages, cost no more than others.
    for (at, file) in [
        document(1, "1e9 1e9", HELLO, ""),
        document(1, "100000 1", HELLO, ""),
        document(5000, LETTER, HELLO, ""),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("large-{at}.pdf");
        upload(&server, &session, &name, &file).await;
        let shown = read(&server, &session, &name, json!(1)).await;
        let image = STANDARD.decode(text(&shown.blocks("image")[0]["data"])).expect("base64");
        let image = image::load_from_memory(&image).expect("an image");
        assert!(image.width().max(image.height()) <= 1568);
    }
    assert_eq!(server.run(&session, "print(1)").await["stdout"], "1\n");
}

async fn a_page_is_refused_with_what_to_do_instead(on: On) {
    let server = Server::start(on).await;
    let session = name("none");
    upload(&server, &session, "report.pdf", &document(2, LETTER, HELLO, "")).await;
    let refused = read(&server, &session, "report.pdf", json!(1)).await;
    assert_eq!(refused.error(), "invalid_argument");
    assert!(text(&refused.json["message"]).contains("embedded engine"), "{}", refused.json);
}

async fn a_page_of_an_office_document_needs_a_recipe_that_the_answer_names(on: On) {
    let server = Server::start(on).await;
    let session = name("office");
    for (file, start) in [("a.docx", &b"PK\x03\x04word/"[..]), ("a.doc", b"\xD0\xCF\x11\xE0")] {
        upload(&server, &session, file, start).await;
        let refused = read(&server, &session, file, json!(1)).await;
        assert_eq!(refused.error(), "invalid_argument");
        let message = text(&refused.json["message"]).to_owned();
        assert!(message.contains("LibreOffice is not installed"), "{message}");
        assert!(message.contains("`llm-sandbox image build --with documents`"), "{message}");
    }
    // The answer without a page does not offer one.
    let whole = read(&server, &session, "a.doc", Value::Null).await.ok();
    assert!(!text(&whole["advice"]).contains("page"), "{whole}");
}
