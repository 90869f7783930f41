//! What the image has for programs: every library works.

use std::{fs, path::Path};

use crate::support::{On, Server, name, text};
use serde_json::{Value, json};

/// A use of each library, in `tests/snippets/libraries`, where `semantics.rs` compares them warm and cold.
const USES: &[(&str, &str)] = &[
    ("pandas", "pandas_frames"),
    ("numpy", "numpy_arrays"),
    ("scipy", "scipy_functions"),
    ("matplotlib", "matplotlib_png"),
    ("seaborn", "seaborn_plot"),
    ("plotly", "plotly_html"),
    ("scikit-learn", "scikit_learn_models"),
    ("statsmodels", "statsmodels_summary"),
    ("sympy", "sympy_algebra"),
    ("networkx", "networkx_drawing"),
    ("polars", "polars_frames"),
    ("duckdb", "duckdb_queries"),
    ("pyarrow", "pyarrow_tables"),
    ("openpyxl", "openpyxl_workbook"),
    ("xlsxwriter", "xlsxwriter_workbook"),
    ("xlrd", "xlrd_old_workbook"),
    ("python-docx", "python_docx_document"),
    ("python-pptx", "python_pptx_slides"),
    ("pypdf", "pypdf_pages"),
    ("reportlab", "reportlab_pdf"),
    ("lxml", "lxml_trees"),
    ("beautifulsoup4", "beautifulsoup4_page"),
    ("html5lib", "html5lib_tables"),
    ("jinja2", "jinja2_template"),
    ("tabulate", "tabulate_tables"),
    ("tqdm", "tqdm_progress"),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn snippet_of_libraries(name: &str) -> String {
    let path = root().join(format!("tests/snippets/libraries/{name}.py"));
    fs::read_to_string(path).expect(name)
}

/// What came of a program, with the names of its artifacts.
struct Ran {
    run: Value,
    artifacts: Vec<String>,
}

async fn run(server: &Server, session: &str, code: &str) -> Ran {
    let run = server.run(session, code).await;
    let artifacts = run["artifacts"].as_array().expect("a list");
    let artifacts = artifacts.iter().map(|artifact| text(&artifact["filename"]).to_owned());
    Ran { artifacts: artifacts.collect(), run }
}

/// Its standard output; it must have done well, without a word on the other.
fn said(ran: &Ran) -> &str {
    assert_eq!((&ran.run["exit_code"], &ran.run["stderr"]), (&json!(0), &json!("")), "{}", ran.run);
    text(&ran.run["stdout"])
}

#[tokio::test(flavor = "multi_thread")]
async fn every_library_works_within_the_default_limits_and_without_a_warning() {
    let list = fs::read_to_string(root().join("sandbox-image/runtimes/python/requirements.in"));
    let list = list.expect("the list of libraries");
    let names: Vec<_> = list.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(USES.iter().map(|(name, _)| *name).collect::<Vec<_>>(), names);
    let server = Server::start(On::Docker).await;
    let id = name("libraries");
    for (library, snippet) in USES {
        let ran = run(&server, &id, &snippet_of_libraries(snippet)).await;
        assert!(!said(&ran).is_empty() || !ran.artifacts.is_empty(), "{library}");
    }
}
