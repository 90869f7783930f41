//! Programs that were written for other machines: fonts, locales, names, widths of numbers, progress bars.

use serde_json::{Value, json};
use support::{On, PATIENT, PRELOADED, Server, assert_fields, name, text};

/// Makes tests of each function: on containers and on the embedded engine, or on containers alone.
macro_rules! habits {
    ($($test:ident),* ; on docker alone: $($other:ident),*) => {
        mod docker {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() { super::$test(support::On::Docker).await })*
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $other() { super::$other().await })*
        }
        mod wasm {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() { super::$test(support::On::Wasm).await })*
        }
    };
}

habits! {
    the_usual_fonts_are_found_and_draw_every_letter,
    a_pdf_of_reportlab_has_the_letters_of_all_alphabets,
    a_locale_writes_numbers_as_it_promises_or_is_refused_with_a_note,
    bars_for_notebooks_are_text,
    a_styled_table_shows_its_text,
    integers_without_a_width_have_64_bits,
    integers_are_those_of_every_machine,
    random_numbers_are_those_of_every_machine,
    a_program_can_ask_who_and_where_it_is,
    the_clock_shows_the_time_of_the_zone_that_is_set,
    times_are_written_as_everywhere,
    archives_that_programs_make_can_be_read_by_others,
    wide_tables_are_printed_whole,
    errors_of_tables_and_json_say_what_to_do,
    a_chart_that_is_too_large_to_be_shown_is_named,
    numbers_and_words_of_javascript_are_those_of_node
    ; on docker alone:
    polars_reads_workbooks,
    a_chart_of_plotly_is_told_to_be_for_the_person,
    errors_of_duckdb_and_polars_say_what_to_do,
    a_query_of_duckdb_draws_no_bar
}

async fn server(on: On) -> (Server, String) {
    (Server::start_with(on, &[PRELOADED, PATIENT]).await, name("habits"))
}

/// The standard output of a program that must exit with 0 and leave standard error empty.
fn said(run: &Value) -> &str {
    assert_eq!((&run["exit_code"], &run["stderr"]), (&json!(0), &json!("")), "{run}");
    text(&run["stdout"])
}

fn first_note(run: &Value) -> &str {
    run["notes"][0].as_str().unwrap_or_default()
}

async fn the_usual_fonts_are_found_and_draw_every_letter(on: On) {
    let (server, id) = server(on).await;
    let code = "import matplotlib.pyplot as plt, logging\n\
                for font in 'Arial', 'SimHei', 'Microsoft YaHei', 'Helvetica', 'Times New Roman', 'Calibri', 'Consolas':\n\
                \x20   plt.rcParams['font.family'] = font\n\
                \x20   plt.title('Łódź 销售额 📈🎉', weight='bold')\n\
                \x20   plt.plot([1, 2])\n\
                \x20   plt.savefig(f'{font}.png')\n\
                plt.savefig('all.pdf')\n\
                from pypdf import PdfReader\n\
                print(PdfReader('all.pdf').pages[0].extract_text().splitlines()[-1])";
    assert_eq!(said(&server.run(&id, code).await), "Łódź 销售额 📈🎉\n");
    let code = "import matplotlib.pyplot as plt\nplt.rcParams['font.family'] = 'No Such Font'\n\
                for n in range(10): plt.title(n); plt.savefig('a.png')";
    let run = server.run(&id, code).await;
    assert!(text(&run["stderr"]).lines().count() <= 2, "{run}");
}

async fn a_pdf_of_reportlab_has_the_letters_of_all_alphabets(on: On) {
    let (server, id) = server(on).await;
    let code = "from reportlab.platypus import SimpleDocTemplate, Paragraph, Table\n\
                from reportlab.lib.styles import getSampleStyleSheet\n\
                from reportlab.pdfbase.pdfmetrics import stringWidth\n\
                style, text = getSampleStyleSheet(), 'Łódź Ağustos 销售额 📈 Привет αβ €'\n\
                parts = [Paragraph(text, style['Normal']), Paragraph(f'<b>{text}</b>', style['Title']), Table([[text]])]\n\
                SimpleDocTemplate('a.pdf').build(parts)\n\
                from pypdf import PdfReader\n\
                print(' '.join(PdfReader('a.pdf').pages[0].extract_text().split()))\n\
                print(stringWidth('abc', 'Helvetica', 10), stringWidth('销', 'Helvetica', 10))";
    let text = "Łódź Ağustos 销售额 📈 Привет αβ €";
    let expected = format!("{text} {text} {text}\n16.12 10.0\n");
    assert_eq!(said(&server.run(&id, code).await), expected);
}

async fn a_locale_writes_numbers_as_it_promises_or_is_refused_with_a_note(on: On) {
    let (server, id) = server(on).await;
    let code = "import locale\nlocale.setlocale(locale.LC_ALL, 'de_DE.UTF-8')\n\
                print(locale.format_string('%.2f', 1234.5, grouping=True))";
    let run = server.run(&id, code).await;
    if on == On::Docker {
        assert_eq!(said(&run), "1.234,50\n");
    } else {
        assert!(
            text(&run["stderr"]).ends_with("locale.Error: unsupported locale setting\n"),
            "{run}"
        );
        assert!(first_note(&run).starts_with("Here is no locale but C: "), "{run}");
    }
    let code = "import locale\nlocale.setlocale(locale.LC_ALL, 'C.UTF-8')\nlocale.setlocale(locale.LC_ALL, '')\n\
                locale.setlocale(locale.LC_ALL, 'tlh_KX')";
    let run = server.run(&id, code).await;
    assert_eq!(run["exit_code"], 1, "{run}");
    let note =
        if on == On::Docker { "These locales are there, " } else { "Here is no locale but C: " };
    assert!(first_note(&run).starts_with(note), "{run}");
}

/// Sets every locale that a note names.
#[tokio::test(flavor = "multi_thread")]
async fn every_locale_that_a_note_names_is_there() {
    let (server, id) = server(On::Docker).await;
    let run = server.run(&id, "import locale\nlocale.setlocale(locale.LC_ALL, 'xx')").await;
    let code = format!(
        "import locale, re\nfor name in re.findall(r'\\b\\w\\w_\\w\\w\\b', {:?}):\n\
         \x20   for form in name, name + '.UTF-8': locale.setlocale(locale.LC_ALL, form)\n    print(name)",
        first_note(&run)
    );
    assert!(said(&server.run(&id, &code).await).lines().count() >= 20, "{run}");
}

async fn bars_for_notebooks_are_text(on: On) {
    let (server, id) = server(on).await;
    for module in ["tqdm.notebook", "tqdm.autonotebook", "tqdm.auto", "tqdm"] {
        let code = format!(
            "from {module} import tqdm, trange\nprint(sum(tqdm(range(3), desc='a')), sum(trange(4)))"
        );
        let run = server.run(&id, &code).await;
        assert_eq!(run["stdout"], "3 6\n", "{module}: {run}");
        let bars: Vec<_> = text(&run["stderr"]).lines().collect();
        assert!(bars.len() == 2 && bars[0].starts_with("a: 100%"), "{module}: {run}");
        let cell =
            server.call("execute_code", json!({ "session_id": id, "code": code })).await.ok();
        assert_eq!(
            (&cell["status"], &cell["stdout"]),
            (&json!("success"), &json!("3 6\n")),
            "{module}: {cell}"
        );
    }
}

async fn a_styled_table_shows_its_text(on: On) {
    let (server, id) = server(on).await;
    let table = "pd.DataFrame({'a': [1.234, 20], 'b': ['x', 'yy']}).style.format({'a': '{:.1f}'})";
    let shown = "      a   b\n0   1.2   x\n1  20.0  yy";
    let code = format!("import pandas as pd\n{table}");
    let cell = server.call("execute_code", json!({ "session_id": id, "code": code })).await.ok();
    assert_eq!(cell["result"], shown, "{cell}");
    let code = format!("import pandas as pd\nprint({table})");
    assert_eq!(said(&server.run(&id, &code).await), format!("{shown}\n"));
}

async fn integers_without_a_width_have_64_bits(on: On) {
    let (server, id) = server(on).await;
    let code = "import numpy as np, pandas as pd\n\
                print(np.sum([2_000_000_000, 1_500_000_000]), np.prod([100_000] * 3), (np.arange(100_000) ** 2)[-1])\n\
                print(np.cumsum([2**30] * 4)[-1], (np.array([2**30]) * 4)[0], np.power(2, 40), np.square(100_000))\n\
                print(np.array([3e9]).astype(int), pd.Series([3e9]).astype(int)[0], pd.Series([1], dtype=int).dtype)\n\
                print(np.zeros(1, dtype=int).dtype, np.zeros(1, int).dtype, np.argsort([2, 1]).dtype)\n\
                print(np.array([2**31 - 1] * 2, dtype='int32').sum(), np.array([1], dtype=np.int32).dtype)\n\
                print(np.bincount([1, 1])[1] * 3_000_000_000, np.where([True], 2**31 - 1, 0) + 1)\n\
                print(np.ceil([12]) * 500_000_000, np.sign([-2]) * 4_000_000_000, np.conj([70000]) ** 2, np.trunc([3]) * 10**9)\n\
                np.random.seed(1); print((np.random.randint(0, 10**12, 9) > 2**31).any(), np.random.randint(5, 6) * 10**10)\n\
                from sklearn.cluster import KMeans\n\
                print(sorted(KMeans(2, n_init=1).fit(np.array([[1, 2], [2, 1], [90, 80]])).labels_)[1])";
    let expected = "3500000000 1000000000000000 9999800001\n4294967296 4294967296 1099511627776 10000000000\n\
                    [3000000000] 3000000000 int64\nint64 int64 int64\n4294967294 int32\n6000000000 [2147483648]\n\
                    [6000000000] [-4000000000] [4900000000] [3000000000]\nTrue 50000000000\n";
    let run = server.run(&id, code).await;
    assert!(said(&run).starts_with(expected), "{run}");
}

async fn integers_are_those_of_every_machine(on: On) {
    let (server, id) = server(on).await;
    let code = "import copy, pickle\nimport numpy as np, pandas as pd\n\
                a, mask = np.array([3, 1, 2, 70000]), np.ones(100_000, bool)\n\
                print(np.where(a > 2, '0-17', '18-64'), np.where(a > 2, 'int', '1,000'), np.isin(['int', 'b'], 'int'))\n\
                print(np.select([a > 2], [2**31], 0), np.where(a > 2, 5 * 10**9, 0)[0], np.clip([5], 10**10, None))\n\
                print(np.repeat(a, np.array([1, 0, 0, 1])), a.repeat([2, 0, 0, 0]), np.choose((a > 2).astype(int), [0, 1]))\n\
                print(np.full((5000, 5000), 255, np.uint8).sum(), np.sum(np.full(100_000, 30_000, np.int16)))\n\
                print(mask.sum() * mask.sum(), (mask.nonzero()[0] ** 2).sum(), (np.arange(100_000)[::-1].argsort() ** 2)[0])\n\
                print(np.sum(a=[2_000_000_000] * 2), np.sum(range(100_000)), np.prod(range(1, 21)), np.dot(100_000, 100_000))\n\
                print(np.percentile([-1_500_000_000, 1_500_000_000], 50), np.pow(10, 10), np.maximum([1], 10**10))\n\
                print(np.add.reduce(mask), np.multiply.reduce([100_000, 100_000]), np.r_[1:3] * 10**10, np.linalg.matrix_power([[1, 1], [1, 0]], 60)[0])\n\
                print(np.multiply([np.float32(1)], 2).dtype, np.add([np.uint8(200)], 5).dtype, np.concatenate([np.zeros(1, 'i4')] * 2).dtype)\n\
                print(pd.Series([2**40]).to_numpy(dtype=int), repr(np.array([1, 2])), copy.deepcopy(np.add) is pickle.loads(pickle.dumps(np.add)))\n\
                print(np.mean([2_000_000_000] * 2, dtype=int), np.array([(1, 2)], dtype=[('a', int), ('b', 'i4')]).dtype)";
    let expected = "['0-17' '18-64' '18-64' '0-17'] ['int' '1,000' '1,000' 'int'] [ True False]\n\
                    [2147483648          0          0 2147483648] 5000000000 [10000000000]\n\
                    [    3 70000] [3 3] [1 0 0 1]\n\
                    6375000000 3000000000\n\
                    10000000000 333328333350000 9999800001\n\
                    4000000000 4999950000 2432902008176640000 10000000000\n\
                    0.0 10000000000 [10000000000]\n\
                    100000 10000000000 [10000000000 20000000000] [2504730781961 1548008755920]\n\
                    float32 uint8 int32\n\
                    [1099511627776] array([1, 2]) True\n\
                    2000000000 [('a', '<i8'), ('b', '<i4')]\n";
    assert_eq!(said(&server.run(&id, code).await), expected);
}

async fn random_numbers_are_those_of_every_machine(on: On) {
    let (server, id) = server(on).await;
    let code = "import numpy as np, pandas as pd\n\
                np.random.seed(42)\n\
                old = np.random.randint(0, 100, 5), np.random.permutation(5), np.random.choice(5, 3), np.random.binomial(10, .5, 3), np.random.poisson(3, 3)\n\
                new = np.random.default_rng(42)\n\
                new = new.integers(0, 100, 5), new.permutation(5), new.choice(5, 3, replace=False), new.poisson(3, 3), new.integers(9, size=2, dtype=int)\n\
                print(*old, *new)\n\
                print({value.dtype.name for value in old + new}, np.random.RandomState(1).randint(2**31 - 2, 2**31 - 1, 1) + 1)\n\
                rng = np.random.default_rng(42)\n\
                print(rng.integers(0, 1 << 30, 2, dtype='int32'), rng.integers(200, size=3, dtype=np.uint8), rng.integers(5, dtype='int32').dtype)\n\
                numbers = np.arange(5)\n\
                rng.shuffle(numbers)\n\
                print(numbers, np.zeros(1, np.int32).dtype, np.array([1], 'i4').dtype, np.empty(1, 'int').dtype, np.issubdtype(int, np.int64))\n\
                print(pd.DataFrame({'a': range(6)}).sample(3, random_state=1).index.tolist())\n\
                from sklearn.model_selection import train_test_split\n\
                print(train_test_split(list(range(6)), random_state=0))";
    let expected = "[51 92 14 71 60] [3 0 1 2 4] [2 2 4] [5 6 2] [3 2 3] [ 8 77 65 43 43] [0 3 4 1 2] [0 2 4] [2 5 1] [7 7]\n\
                    {'int64'} [2147483647]\n\
                    [ 95832482 831028979] [150 199 113] int32\n\
                    [3 0 1 2 4] int32 int32 int64 True\n\
                    [2, 1, 4]\n\
                    [[1, 3, 0, 4], [5, 2]]\n";
    assert_eq!(said(&server.run(&id, code).await), expected);
}

async fn a_program_can_ask_who_and_where_it_is(on: On) {
    let (server, id) = server(on).await;
    let code = "import getpass, os, pathlib, platform, socket\n\
                print(getpass.getuser()[:7], platform.node(), socket.gethostname())\n\
                print(os.path.isdir(pathlib.Path.home()), os.path.expanduser('~') == str(pathlib.Path.home()))";
    assert_eq!(said(&server.run(&id, code).await), "sandbox sandbox sandbox\nTrue True\n");
}

async fn the_clock_shows_the_time_of_the_zone_that_is_set(on: On) {
    // This zone differs from UTC by half hours and has no summer time.
    let zone = [PRELOADED, ("SANDBOX_TIMEZONE", "Asia/Kolkata")];
    let (server, id) = (Server::start_with(on, &zone).await, name("zone"));
    let code = "import datetime, email.utils, logging, os, time\nfrom datetime import datetime as moment, timezone\n\
                utc = moment.now(timezone.utc)\n\
                print((moment.now() - utc.replace(tzinfo=None)).total_seconds() // 60, os.environ['TZ'])\n\
                print(moment.fromtimestamp(0), moment.fromtimestamp(0, timezone.utc), moment(1970, 1, 1).timestamp())\n\
                print(time.localtime(0)[:5], time.localtime(0).tm_gmtoff, time.gmtime(0)[:5], time.mktime(time.localtime(99)))\n\
                print(time.strftime('%H:%M %Z %%Z', time.localtime(0)), time.tzname[0], time.timezone, time.ctime(0))\n\
                print(moment(2026, 1, 1).astimezone().utcoffset(), moment(2026, 1, 1, tzinfo=timezone.utc).astimezone().hour)\n\
                print(datetime.date.fromtimestamp(70_000), datetime.date.today() == moment.today().date() == moment.now().date())\n\
                import pandas as pd\n\
                print(round((pd.Timestamp.now() - pd.Timestamp.now('UTC').tz_localize(None)).total_seconds() / 60))\n\
                print(logging.Formatter('%(asctime)s').format(logging.makeLogRecord({'created': 0, 'msecs': 0})))";
    let expected = "330.0 Asia/Kolkata\n1970-01-01 05:30:00 1970-01-01 00:00:00+00:00 -19800.0\n\
                    (1970, 1, 1, 5, 30) 19800 (1970, 1, 1, 0, 0) 99.0\n05:30 IST %Z IST -19800 Thu Jan  1 05:30:00 1970\n\
                    5:30:00 5\n1970-01-02 True\n330\n1970-01-01 05:30:00,000\n";
    let run = server.run(&id, code).await;
    assert_eq!((text(&run["stdout"]), text(&run["stderr"])), (expected, ""), "{run}");
    let cell = server.call("execute_code", json!({ "session_id": id, "code": code })).await.ok();
    assert_eq!(text(&cell["stdout"]), expected, "{cell}");
    if on == On::Docker {
        for (language, code) in
            [("bash", "date -d @0 +%H:%M"), ("javascript", "console.log(new Date(0).getHours())")]
        {
            let code = json!({ "session_id": id, "code": code, "language": language });
            let cell = server.call("execute_code", code).await.ok();
            assert!(text(&cell["stdout"]).trim_start_matches('0').starts_with('5'), "{cell}");
        }
    }
    // At any time one of the two has another day than UTC.
    for zone in ["Pacific/Kiritimati", "Pacific/Pago_Pago"] {
        let server = Server::start_with(on, &[PRELOADED, ("SANDBOX_TIMEZONE", zone)]).await;
        let code = "import datetime, time\nfrom datetime import datetime as moment\n\
                    class Day(datetime.date): pass\n\
                    there = moment.now(datetime.timezone.utc).astimezone().date()\n\
                    days = [datetime.date.today(), Day.today(), moment.today().date(), moment.now().date(),\n\
                            datetime.date.fromtimestamp(time.time()), datetime.date(*time.localtime()[:3])]\n\
                    print([day == there for day in days], type(Day.today()).__name__)";
        let run = server.run(&id, code).await;
        assert_eq!(said(&run), "[True, True, True, True, True, True] Day\n", "{zone}");
    }
}

async fn times_are_written_as_everywhere(on: On) {
    let (server, id) = server(on).await;
    let code = "from datetime import datetime as moment\nimport pandas as pd, time\nat = moment(2025, 3, 1, 14, 5)\n\
                print([at.strftime(form) for form in ('%l:%M %P', 'KW %V, 20%', '%^B %Y', '%b %e %k:%M', '%q %-d %y%%')])\n\
                print(f'{at:%d.%m.%Y (50%)}', pd.Series([at]).dt.strftime('%k:%M %P')[0], time.strftime('%P', at.timetuple()))";
    let said_here = "[' 2:05 pm', 'KW 09, 20%', 'MARCH 2025', 'Mar  1 14:05', '%q 1 25%']\n01.03.2025 (50%) 14:05 pm pm\n";
    assert_eq!(said(&server.run(&id, code).await), said_here);
}

async fn archives_that_programs_make_can_be_read_by_others(on: On) {
    let (server, id) = server(on).await;
    let code = "import os, pathlib, shutil, tarfile, zipfile\nos.mkdir('rep')\n\
                pathlib.Path('rep/a.csv').write_text('1')\nshutil.make_archive('arch', 'zip', '.', 'rep')\n\
                print({info.filename: oct(info.external_attr >> 16) for info in zipfile.ZipFile('arch.zip').infolist()})\n\
                with tarfile.open('arch.tar', 'w') as tar: tar.add('rep')\n\
                print({info.name: oct(info.mode) for info in tarfile.open('arch.tar')})\n\
                there = os.stat('rep/a.csv')\n\
                print(oct(there.st_mode), there.st_size, there.st_mtime_ns // 10**9 == int(there.st_mtime), os.path.isdir('rep'))\n\
                shutil.copytree('rep', 'copy')\nshutil.rmtree('rep')\nprint(os.listdir('copy'), os.path.exists('rep'))";
    let expected = "{'rep/': '0o40755', 'rep/a.csv': '0o100644'}\n{'rep': '0o755', 'rep/a.csv': '0o644'}\n\
                    0o100644 1 True True\n['a.csv'] False\n";
    assert_eq!(said(&server.run(&id, code).await), expected);
}

async fn wide_tables_are_printed_whole(on: On) {
    let (server, id) = server(on).await;
    let code = "import os, pandas as pd\nprint(pd.DataFrame({f'long_column_name_{n}': [n] for n in range(9)}), os.environ['COLUMNS'])\n\
                pd.reset_option('display.max_columns')\nprint(pd.get_option('display.max_columns'), pd.get_option('display.width'))";
    let run = server.run(&id, code).await;
    assert!((0..9).all(|n| said(&run).contains(&format!("long_column_name_{n}"))), "{run}");
    assert!(said(&run).ends_with(" 200\n40 200\n"), "{run}");
}

async fn polars_reads_workbooks() {
    let (server, id) = server(On::Docker).await;
    let code = "import pandas as pd, polars as pl\npd.DataFrame({'a': [1, 2]}).to_excel('a.xlsx', index=False)\n\
                print(pl.read_excel('a.xlsx')['a'].sum())";
    assert_eq!(said(&server.run(&id, code).await), "3\n");
}

async fn a_chart_of_plotly_is_told_to_be_for_the_person() {
    let (server, id) = server(On::Docker).await;
    let code = "import plotly.express as px\npx.line(x=[1, 2], y=[3, 4])";
    let cell = server.call("execute_code", json!({ "session_id": id, "code": code })).await.ok();
    let note = "\"figure_1.html\" is for the person's browser: draw with matplotlib what you want to see yourself.";
    assert_eq!(first_note(&cell), note, "{cell}");
    let run = server.run(&id, &format!("{code}.show()")).await;
    assert_eq!(first_note(&run), note.replace("_1", "_2"), "{run}");
    assert_eq!(run["stdout"], "figure_2.html: x: x; y: y; scatter (2 points)\n");
}

async fn errors_of_duckdb_and_polars_say_what_to_do() {
    let (server, id) = server(On::Docker).await;
    let write = "open('a.csv', 'wb').write('a;b\\nStraße;München\\n'.encode('cp1252'))";
    for (code, note) in [
        ("import duckdb\nduckdb.sql('install excel')", "The sandbox has no network"),
        ("import duckdb\nduckdb.sql(\"from 'a.xlsx'\")", "The sandbox has no network"),
        ("import duckdb\nduckdb.sql(\"from 'a.csv'\").fetchall()", "The file is not UTF-8"),
        (
            "import duckdb\nduckdb.sql(\"from read_csv('a.csv', encoding='cp1252')\").fetchall()",
            "The file is not UTF-8",
        ),
        ("import polars as pl\npl.read_csv('a.csv')", "The file is not UTF-8"),
        ("import polars as pl\npl.scan_csv('a.csv').collect()", "The file is not UTF-8"),
    ] {
        let code = format!("{write}\n{code}");
        let run = server.run(&id, &code).await;
        assert!(first_note(&run).starts_with(note), "{code}: {run}");
        let cell =
            server.call("execute_code", json!({ "session_id": id, "code": code })).await.ok();
        assert!(first_note(&cell).starts_with(note), "{code}: {cell}");
    }
}

async fn a_query_of_duckdb_draws_no_bar() {
    let (server, id) = server(On::Docker).await;
    let code = "import duckdb\nduckdb.sql('select sum(a.range * b.range) from range(40000) a, range(40000) b').fetchall()[0][0] > 0";
    let cell = server
        .call("execute_code", json!({ "session_id": id, "code": code, "timeout": 60 }))
        .await
        .ok();
    assert_fields!(cell, { "result": "True", "stdout": "", "stderr": "" });
}

async fn errors_of_tables_and_json_say_what_to_do(on: On) {
    let (server, id) = server(on).await;
    server.upload(&id, "lines.json", b"{\"a\": 1}\n{\"a\": 2}\n").await.ok();
    server.upload(&id, "marked.json", b"\xEF\xBB\xBF{\"a\": 1}").await.ok();
    let by_line = "The file seems to have a JSON value on each line";
    for (code, said) in [
        ("import pandas as pd; pd.read_json('lines.json')", by_line),
        ("import json; json.load(open('lines.json'))", by_line),
        (
            "import json; json.load(open('marked.json', encoding='utf-8'))",
            "The file begins with a byte order mark",
        ),
        (
            "import pandas as pd; pd.DataFrame({'price': [1], 'units': [2]}).query('prise > 1')",
            r#"The columns are: "price", "units"."#,
        ),
        (
            r"open('C:\\Users\\a.csv')",
            r#"There is no "C:\\Users\\a.csv": read and write in /mnt/data."#,
        ),
    ] {
        let run = server.run(&id, code).await;
        assert!(first_note(&run).starts_with(said), "{code}: {run}");
    }
}

async fn a_chart_that_is_too_large_to_be_shown_is_named(on: On) {
    let (server, id) = server(on).await;
    let code = "from PIL import Image\nImage.new('L', (6000, 5000)).save('poster.png')\n\
                Image.new('L', (60, 50)).save('small.png')";
    let arguments = json!({ "session_id": id, "code": code });
    let answer = server.call("run_python", arguments).await;
    assert_eq!(answer.blocks("image").len(), 1);
    let said = "Not shown, with too many pixels or bytes: \"poster.png\". Save it smaller, such as with dpi=100, to \
                look at it.";
    assert_eq!(first_note(&answer.ok()), said);
}

async fn numbers_and_words_of_javascript_are_those_of_node(on: On) {
    let (server, id) = server(on).await;
    let code = "const rows = [1234567.891, -1234.5, 1.005, 1e21, NaN, 12n].map(x => x.toLocaleString());\n\
                const forms = [{ maximumFractionDigits: 2 }, { minimumFractionDigits: 1 }, { style: 'percent' },\n\
                  { style: 'currency', currency: 'EUR' }, { useGrouping: false }];\n\
                rows.push(...forms.map(form => (1234.005).toLocaleString('en-US', form)));\n\
                const at = new Date(2025, 0, 3, 15, 4, 5);\n\
                rows.push(at.toLocaleDateString(), at.toLocaleTimeString('en-US'), at.toLocaleString());\n\
                const words = ['zebra', 'Zoë', 'äpfel', 'Apfel', 'apfel', 'Straße', 'Strasse', 'item 10', 'item 2', '_a'];\n\
                rows.push([...words].sort((a, b) => a.localeCompare(b)).join(), 'ß'.toLocaleUpperCase());\n\
                rows.push(['a10', 'a9'].sort((a, b) => a.localeCompare(b, 'de', { numeric: true })).join());\n\
                rows.push('a'.localeCompare('Á', 'en', { sensitivity: 'base' }), 'a' < 'Á');\n\
                console.log(rows.join('\\n'))";
    let expected = "1,234,567.891\n-1,234.5\n1.005\n1,000,000,000,000,000,000,000\nNaN\n12\n\
                    1,234.01\n1,234.005\n123,401%\n€1,234.01\n1234.005\n\
                    1/3/2025\n3:04:05 PM\n1/3/2025, 3:04:05 PM\n\
                    _a,apfel,Apfel,äpfel,item 10,item 2,Strasse,Straße,zebra,Zoë\nSS\na9,a10\n0\ntrue\n";
    let run = async |code: &str| {
        let arguments = json!({ "session_id": id, "language": "javascript", "code": code });
        server.call("execute_code", arguments).await.ok()
    };
    let ran = run(code).await;
    assert_eq!(text(&ran["stdout"]), expected, "{ran}");
    if on == On::Wasm {
        for code in [
            "(1234.5).toLocaleString('de-DE')",
            "new Date().toLocaleDateString('en-US', { month: 'short' })",
            "'a'.localeCompare('b', 'sv')",
            "'i'.toLocaleUpperCase('tr')",
        ] {
            let refused = run(code).await;
            assert!(text(&refused["stderr"]).contains("here is no Intl"), "{refused}");
        }
    }
}
