//! Rights: the tools that may be called, and the callers.

use super::*;

#[tokio::test]
async fn a_tool_that_only_reads_may_be_called_and_others_need_a_setting() {
    let folder = tempfile::tempdir().expect("a folder");
    let more = "    allow: [create_*, 'delete_*']\n    ask: [delete_contact, 'str*']\n";
    let crm = of(&server("old", folder.path(), more));
    let verdict = async |tool| {
        let prepared = crm.prepare(tool_call("crm", tool, json!({}))).await;
        prepared.map(|prepared| prepared.verdict())
    };
    assert_eq!(verdict("fail").await, Ok(Verdict::Allowed));
    assert_eq!(verdict("create_contact").await, Ok(Verdict::Allowed));
    assert_eq!(verdict("delete_contact").await, Ok(Verdict::Ask));
    assert_eq!(verdict("structured").await, Ok(Verdict::Ask));
    let error = verdict("update_contact").await.expect_err("not allowed");
    assert_eq!(error.kind, CallErrorKind::NotAllowed);
    assert!(error.message.contains("upstreams.crm.allow"), "{}", error.message);
    let error = verdict("creat_contact").await.expect_err("unknown");
    assert_eq!(error.kind, CallErrorKind::UnknownTool);
    assert!(error.message.contains("did you mean create_contact"), "{}", error.message);
    let tools = crm.discover(Discover::Tools { upstream: "crm".into() }).await.expect("tools");
    let rights = |name: &str| {
        let tools = tools.as_array().expect("a list").iter();
        tools.filter(|tool| tool["name"] == name).map(|tool| tool["rights"].clone()).next()
    };
    assert_eq!(rights("fail"), Some("allowed".into()));
    assert_eq!(rights("delete_contact"), Some("ask".into()));
    assert_eq!(rights("update_contact"), Some("denied".into()));
    // A name that could not be shown.
    assert_eq!(rights("no hint\n"), None);
    files(folder.path(), "create_contact", 0).await;
}

#[tokio::test]
async fn wrong_arguments_reach_no_upstream() {
    let folder = tempfile::tempdir().expect("a folder");
    let crm = of(&server("old", folder.path(), ""));
    for (arguments, why) in [
        (json!({}), "text is missing"),
        (json!({ "text": 1 }), "text: is a number"),
        (json!({ "text": "x", "txt": "" }), "did you mean text?"),
    ] {
        let error = call(&crm, "echo", arguments).await.expect_err("refused");
        assert_eq!(error.kind, CallErrorKind::InvalidArguments);
        assert!(error.message.contains(why), "{}", error.message);
    }
}

#[tokio::test]
async fn a_caller_sees_only_its_upstreams() {
    let yaml = "
policies:
  few: { calls: { upstreams: [b] } }
  none: { calls: { upstreams: none } }
callers:
  - { name: ann, token: t1 }
upstreams:
  a: { command: x, callers: [ann] }
  b: { command: x }
  c: { command: x, callers: [bob] }
";
    let config = config(yaml).expect("valid");
    let narrowed = config.callers.narrowed(&config);
    let all = Upstreams::new(&config).expect("upstreams");
    let names = |caller: &str, policy: Option<&str>| {
        let caller = Principal::named(caller).expect("a name");
        let listed = policy.and_then(|policy| narrowed[policy].upstream_list.as_deref());
        let own = all.of(&caller, listed);
        own.names().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(names("ann", None), ["a", "b"]);
    assert_eq!(names("eve", None), ["b"]);
    assert_eq!(names("ann", Some("few")), ["b"]);
    assert_eq!(names("ann", Some("none")), [""; 0]);
    let ann = all.of(&Principal::named("ann").expect("a name"), None);
    let error = ann.prepare(tool_call("c", "x", json!({}))).await.expect_err("not its own");
    assert_eq!(error.kind, CallErrorKind::UnknownUpstream);
    assert_eq!(error.message, "there is no upstream \"c\"; there are: a, b");
}

#[tokio::test]
async fn a_search_finds_tools_that_may_be_called_by_words_the_best_first() {
    let folder = tempfile::tempdir().expect("a folder");
    let more = "    description: Customers of the firm\n    allow: [create_*, update_*]\n";
    let crm = of(&server("old", folder.path(), more));
    let search = async |query: &str| {
        let query = query.to_owned();
        let found = crm.discover(Discover::Search { query, limit: Some(3) }).await.expect("found");
        let names = found.as_array().expect("a list").iter();
        names.map(|it| it["name"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(search("contacts").await, ["create_contact", "update_contact"]);
    assert_eq!(search("update contact").await, ["update_contact"]);
    assert_eq!(search("repeat").await, ["echo"]);
    assert_eq!(search("customers image").await, ["image"]);
    assert_eq!(search("customers").await.len(), 3);
    assert_eq!(search("nothing of it").await, [""; 0]);
    // The work for a query does not grow with its length: words beyond the sixteenth do not count.
    assert_eq!(search(&format!("{}nothing of it", "contacts ".repeat(16))).await.len(), 2);
    assert_eq!(search(&format!("{}nothing", "contacts ".repeat(15))).await, [""; 0]);
    let found = crm.discover(Discover::Search { query: "image".into(), limit: None }).await;
    let wanted = json!([{ "upstream": "crm", "name": "image", "description": "The tool image." }]);
    assert_eq!(found, Ok(wanted));
}
