//! Languages that the image's label adds with a command: Perl, which the base of the image has, and so do machines of
//! tests. On Docker the label is that of a derived image; elsewhere it is a setting.

use serde_json::{Value, json};
use support::{Image, On, Server, assert_fields, http, name, on_all, text, web::Web};

on_all! {
    ; not on wasm:
    a_labelled_language_runs_with_input_files_and_a_result,
    a_labelled_language_is_stopped_at_its_timeout_and_keeps_nothing,
    a_labelled_language_is_found_by_its_names_and_in_fences,
    ; on docker alone: a_server_whose_image_has_an_invalid_label_is_not_ready_and_says_why,
}

/// The value of the last expression of a file becomes the result.
const PERL: &str =
    r#"my $v = do $ARGV[0]; die $@ if $@; open my $f, ">", $ARGV[1]; print $f $v if defined $v"#;

fn label() -> String {
    let perl = json!({
        "name": "perl",
        "title": "Perl",
        "aliases": ["pl"],
        "version": "5",
        "command": ["perl", "-e", PERL, "{file}", "{result}"],
        "file": "main.pl",
        "libraries": [{ "name": "List-Util" }],
    });
    let mut all = ["python", "javascript", "bash"].map(|name| json!({ "name": name })).to_vec();
    all.push(perl);
    json!({ "runtimes": all }).to_string()
}

/// A server whose sandboxes have the language.
struct Labelled {
    server: Server,
    _image: Option<Image>,
}

impl Labelled {
    async fn start(on: On) -> Self {
        let label = label();
        if on != On::Docker {
            let server = Server::start_with(on, &[("SANDBOX_IMAGE_TEMPLATE", &label)]).await;
            return Self { server, _image: None };
        }
        let image = labelled(&label);
        let server = Server::start_with(on, &[("SANDBOX_IMAGE", &image.0)]).await;
        Self { server, _image: Some(image) }
    }

    async fn run(&self, mut arguments: Value, code: &str) -> Value {
        arguments["code"] = code.into();
        arguments["language"] = "perl".into();
        self.server.call("execute_code", arguments).await.ok()
    }
}

fn labelled(label: &str) -> Image {
    let image = Image::named("labelled");
    let label = label.replace('\\', r"\\").replace('"', r#"\""#).replace('$', r"\$");
    image.build(&format!("LABEL llm-sandbox.template=\"{label}\""));
    image
}

async fn a_labelled_language_runs_with_input_files_and_a_result(on: On) {
    let it = Labelled::start(on).await;
    let session = json!({ "session_id": name("perl") });
    it.server.upload(text(&session["session_id"]), "in.txt", b"a\nb\n").await.ok();
    let mut with_input = session.clone();
    with_input["stdin"] = "from a person".into();
    let code = "open my $in, '<', 'in.txt'; my @lines = <$in>; print STDERR 'seen'; print scalar <STDIN>;\n\
        open my $out, '>', 'out.txt'; print $out 'made'; close $out; scalar(@lines) . ' lines';";
    let ran = it.run(with_input, code).await;
    assert_fields!(ran, {
        "status": "success", "exit_code": 0, "stdout": "from a person", "stderr": "seen",
        "result": "2 lines", "execution_count": 1, "state": "kept",
    });
    assert_eq!(ran["artifacts"][0]["filename"], "out.txt", "{ran}");
    let long = it.run(session.clone(), "'x' x 100_000;").await;
    assert_fields!(long, { "status": "success", "execution_count": 2 });
    assert!(text(&long["result"]).len() < 40_000, "{long}");
    let failed = it.run(session.clone(), "die 'no such column';").await;
    assert_fields!(failed, { "status": "execution_error", "exit_code": 255, "result": null });
    assert!(text(&failed["stderr"]).starts_with("no such column at "), "{failed}");
    // A program that replaces the file of its result has no result.
    let replaced =
        it.run(session, "my $f = $ARGV[1]; unlink $f; symlink '/etc/passwd', $f; 1;").await;
    assert_eq!(replaced["result"], Value::Null, "{replaced}");
}

async fn a_labelled_language_is_stopped_at_its_timeout_and_keeps_nothing(on: On) {
    let it = Labelled::start(on).await;
    let session = name("perl");
    let ran =
        it.run(json!({ "session_id": session, "timeout": 1 }), "our $x = 7; 1 while 1;").await;
    assert_fields!(ran, { "status": "timeout" });
    let notes = ran["notes"].to_string();
    assert!(!notes.contains("ariables") && !notes.contains("What the code did"), "{ran}");
    let ran = it.run(json!({ "session_id": session }), "our $x; $x // 'nothing';").await;
    assert_fields!(ran, { "result": "nothing", "notes": null });
}

async fn a_labelled_language_is_found_by_its_names_and_in_fences(on: On) {
    let it = Labelled::start(on).await;
    let listed = it.server.call("list_runtimes", json!({})).await.ok();
    let all = listed["runtimes"].as_array().expect("an array");
    let perl = all.iter().find(|it| it["language"] == "perl").expect("listed");
    assert_fields!(perl, {
        "version": "5", "features": ["result", "files"], "packages": [{ "name": "List-Util" }],
    });
    let tools = it.server.tools().await;
    let tool = tools.iter().find(|tool| tool["name"] == "execute_code").expect("offered");
    assert!(text(&tool["description"]).contains("perl keeps nothing."), "{tool}");
    let choices = tool["inputSchema"]["properties"]["language"]["enum"].to_string();
    assert!(choices.contains(r#""perl""#), "{choices}");
    for (language, code) in
        [(Some("Perl"), "1 + 1;"), (Some("pl"), "1 + 1;"), (None, "```perl\n1 + 1;\n```")]
    {
        let arguments = json!({ "code": code, "language": language });
        let ran = it.server.call("execute_code", arguments).await.ok();
        assert_eq!(ran["result"], "2", "{language:?}: {ran}");
    }
    let wrong = it.server.call("run_python", json!({ "code": "```perl\n1;\n```" })).await;
    assert_eq!(wrong.error(), "invalid_argument");
    let wrong = json!({ "code": "1", "language": "cobol" });
    let wrong = it.server.call("execute_code", wrong).await;
    assert!(wrong.json.to_string().contains("python, javascript, bash, perl"), "{}", wrong.json);
}

async fn a_server_whose_image_has_an_invalid_label_is_not_ready_and_says_why() {
    let image = labelled(r#"{ "runtimes": [{ "name": "perl", "command": ["perl"] }] }"#);
    let (web, _) = Web::open(On::Docker, &[("SANDBOX_IMAGE", &image.0)]).await;
    let ready = http("GET", &format!("{}/ready", web.base)).await;
    assert_eq!(ready.status, 503);
    let told = ready.json()["message"].clone();
    let said = text(&told);
    assert!(said.contains("llm-sandbox.template") && said.contains("{file}"), "{said}");
}
