//! The image's libraries: every library works, plots that are shown become files, tables are printed whole, and nothing
//! claims that more could be installed.

use std::{fs, process::Command};

use serde_json::{Value, json};
use support::{On, PRELOADED, Server, image, name, root, text};

/// A snippet for each library, in `tests/snippets/libraries`, which `semantics.rs` also compares warm and cold.
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
    ("pyyaml", "pyyaml_settings"),
    ("tqdm", "tqdm_progress"),
];

/// A limit of uploads that fits the small data area of a test.
const MAX_UPLOAD: (&str, &str) = ("SANDBOX_MAX_UPLOAD_BYTES", "4MB");

fn snippet_of_libraries(name: &str) -> String {
    let path = root().join(format!("tests/snippets/libraries/{name}.py"));
    fs::read_to_string(path).expect(name)
}

/// A run, with the names of its artifacts.
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

/// The standard output of a run that must exit with 0 and leave standard error empty.
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
    let (server, id) = (Server::start_with(On::Docker, &[PRELOADED]).await, name("libraries"));
    for (library, snippet) in USES {
        let ran = run(&server, &id, &snippet_of_libraries(snippet)).await;
        assert!(!said(&ran).is_empty() || !ran.artifacts.is_empty(), "{library}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_shown_comes_back_like_any_chart_and_overwrites_none() {
    let (server, id) = (Server::start_with(On::Docker, &[PRELOADED]).await, name("shown"));
    let code = "import matplotlib.pyplot as plt\n\
                for n in range(2): plt.plot([n, 1]); plt.show()\nprint(plt.get_fignums())";
    let first = run(&server, &id, code).await;
    assert_eq!(said(&first), "[]\n");
    assert_eq!(first.artifacts, ["figure_1.png", "figure_2.png"]);
    let answer = server.call("run_python", json!({ "session_id": id, "code": code })).await;
    assert_eq!(answer.blocks("image").len(), 2);
    let names: Vec<_> = server.files(&id).await.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["figure_1.png", "figure_2.png", "figure_3.png", "figure_4.png"]);
    let saved =
        "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.savefig('own.png')\nplt.show()";
    assert_eq!(run(&server, &id, saved).await.artifacts, ["own.png"]);
    let page = "import plotly.express as px\npx.line(x=[1, 2], y=[3, 4]).show()";
    assert_eq!(run(&server, &id, page).await.artifacts, ["figure_1.html"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_figure_is_saved_once_for_what_it_shows() {
    let server =
        Server::start_with(On::Docker, &[PRELOADED, ("SANDBOX_DATA_LIMIT", "8MB"), MAX_UPLOAD])
            .await;
    for (snippet, expected) in [
        (
            "matplotlib_show_saved",
            "chart.png 0 []\nchart.svg 0 []\nchart 0 []\nto a file object 0 []\nto pages 0 []\n\
             to memory: seen by nobody 1 []\nelsewhere: seen by nobody 1 []\n\
             cleared and drawn anew 1 []\ndrawn on 1 []\n\
             [Errno 2] No such file or directory: 'no/such/folder.png'\n\
             after a failure to save 1 []\n",
        ),
        (
            "matplotlib_show_all",
            "[] ['figure_1.png', 'figure_2.png', 'figure_3.png'] 0\n(320, 240) (640, 480)\n\
             [] ['figure_1.png', 'figure_2.png', 'figure_3.png', 'figure_4.png']\n",
        ),
        (
            "matplotlib_show_one",
            "[2] ['figure_1.png']\n\
             [] ['again.png', 'figure_1.png', 'figure_2.png', 'figure_3.png']\n",
        ),
        (
            "matplotlib_show_by_libraries",
            "[] ['figure_1.png', 'figure_2.png', 'figure_3.png', 'figure_4.png']\n",
        ),
        (
            "matplotlib_show_elsewhere",
            "[1] ['below']\n[1] ['below']\n[] ['below', 'figure_1.png']\n",
        ),
        (
            "matplotlib_show_and_the_disk_is_full",
            "[Errno 28] No space left on device\n28 [1] ['large']\n[] ['figure_1.png']\n",
        ),
        ("matplotlib_unseen", "0\n0\n2\n1\n0\n0\n0\n"),
    ] {
        let ran = run(&server, &name("figures"), &snippet_of_libraries(snippet)).await;
        assert_eq!(said(&ran), expected, "{snippet}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_can_be_installed_which_is_said_at_once_in_a_line() {
    let (server, id) = (Server::start_with(On::Docker, &[PRELOADED]).await, name("pip"));
    let ask = async |command: &str| {
        let code = format!(
            "import subprocess, sys\n\
             done = subprocess.run({command:?}.replace('python', sys.executable).split(), \
             capture_output=True, text=True)\n\
             print(done.returncode, done.stdout, done.stderr, sep='|')"
        );
        let ran = run(&server, &id, &code).await;
        said(&ran).trim_end().to_owned()
    };
    let refused = |name: &str, what: &str| {
        format!("1||{name}: there is no network here, so {what} be installed")
    };
    for (command, name, what) in [
        ("pip install torch", "pip", "torch cannot"),
        ("pip3 install --upgrade -q torch==2.9 jax[cpu]", "pip", "torch==2.9 jax[cpu] cannot"),
        ("python -m pip install torch", "pip", "torch cannot"),
        ("pip install pandas==1.5", "pip", "pandas==1.5 cannot"),
        ("pip install torch pandas", "pip", "torch cannot"),
        ("uv pip install torch", "uv", "torch cannot"),
        ("conda install -y -c conda-forge torch", "conda", "torch cannot"),
        ("apt-get install -y graphviz", "apt-get", "nothing can"),
    ] {
        let answer = ask(command).await;
        let expected = refused(name, what);
        assert!(answer.starts_with(&expected), "{command}: {answer}");
        assert_eq!(answer.lines().count(), 1, "{command}: {answer}");
    }
    assert!(ask("pip install torch").await.contains("Use what is installed: pandas, numpy, "));
    assert!(ask("pip install torch pandas").await.contains(" (installed: pandas 3"));
    for command in ["pip install pandas", "python -m pip install -U pandas>=2", "uv add pandas"] {
        let answer = ask(command).await;
        assert!(
            answer.starts_with("0|pandas ") && answer.contains(" is already installed."),
            "{answer}"
        );
    }
    assert!(ask("pip install sklearn").await.starts_with("0|scikit-learn "));
    assert!(ask("pip list").await.contains("\nscikit-learn"));
    assert!(ask("pip freeze").await.contains("\npandas=="));
    assert!(ask("pip show pandas").await.starts_with("0|Name: pandas\nVersion: "));
    assert!(ask("pip --version").await.starts_with("0|pip "));
}

#[test]
fn whoever_builds_an_image_on_ours_has_the_real_programs() {
    let ask = |program: &str| {
        let output = Command::new("docker")
            .args(["run", "--rm", "--network", "none", "--user", "0:0", "--entrypoint", program])
            .args([&*image(), "--version"])
            .output()
            .expect("the docker client runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    assert!(ask("pip").contains(" from /opt/sandbox/pip.zip/pip "));
    assert!(ask("apt-get").starts_with("apt "));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wide_table_is_printed_whole() {
    let (server, id) = (Server::start_with(On::Docker, &[PRELOADED]).await, name("wide"));
    let code = "import pandas as pd\n\
                table = pd.DataFrame({f'a_long_name_{n}': [n * 1.5] * 3 for n in range(COUNT)})\n\
                print(table)";
    // The first run in a session may start cold.
    for _ in 0..2 {
        let twenty = run(&server, &id, &code.replace("COUNT", "20")).await;
        let shown = said(&twenty);
        assert!(!shown.contains(" ... "), "{shown}");
        for number in 0..20 {
            assert!(shown.contains(&format!(" a_long_name_{number} ")), "{shown}");
        }
        assert!(shown.lines().all(|line| line.len() <= 200), "{shown}");
    }
    let many = run(&server, &id, &code.replace("COUNT", "100")).await;
    assert!(said(&many).contains(" ... "), "{}", many.run);
    let help = "import argparse\nparser = argparse.ArgumentParser(prog='p')\n\
                parser.add_argument('--a', help='word ' * 30)\nparser.print_help()";
    assert!(said(&run(&server, &id, help).await).lines().any(|line| line.len() > 150));
}
