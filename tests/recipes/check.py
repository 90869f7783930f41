"""Does with a recipe's image what the recipe is for, through the protocol, and prints a line for each check:

    python3 tests/recipes/check.py PROGRAM RECIPE

The setting SANDBOX_IMAGE names the image.
"""

import base64
import json
import os
import subprocess
import sys
import textwrap
import traceback


class Client:
    """A client over standard input and output, with one session."""

    def __init__(self, program):
        self.server = subprocess.Popen(
            [program, "serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"SANDBOX_TOOLSETS": "run,code,sessions", "SANDBOX_LOG_LEVEL": "error"},
        )
        self.number = 0
        client = {"name": "recipes", "version": "1"}
        self.ask("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client})
        self.send({"method": "notifications/initialized"})

    def send(self, message):
        self.server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.server.stdin.flush()

    def ask(self, method, params):
        self.number += 1
        self.send({"id": self.number, "method": method, "params": params})
        for line in self.server.stdout:
            answer = json.loads(line)
            if answer.get("id") == self.number:
                return answer["result"]
        raise EOFError("the server has ended")

    def call(self, tool, **arguments):
        return self.ask("tools/call", {"name": tool, "arguments": {"session_id": "recipes", **arguments}})

    def run(self, code, language="bash", status="success"):
        """The result of code that must end so, and its pictures."""
        answer = self.call("execute_code", code=code, language=language)
        result = answer.get("structuredContent")
        assert result and result["status"] == status, json.dumps(answer)[:2000]
        return result, pictures(answer)

    def page(self, path, page):
        answer = self.call("read_artifact", path=path, page=page)
        assert not answer.get("isError"), answer["content"]
        return answer["structuredContent"], pictures(answer)

    def end(self):
        self.call("close_session")
        self.server.stdin.close()
        self.server.wait(60)


def pictures(answer):
    return [base64.b64decode(block["data"]) for block in answer["content"] if block["type"] == "image"]


def in_language(client, name, code, succeeds=True):
    """Runs code of a language. Returns standard output, errors, and pictures."""
    result, shown = client.run(textwrap.dedent(code), name, "success" if succeeds else "execution_error")
    return result["stdout"], result["stderr"], shown


def equal(found, wanted):
    assert found == wanted, f"{found!r} instead of {wanted!r}"


def contains(text, *parts):
    for part in parts:
        assert part in text, f"no {part!r} in {text!r}"


# R


def a_plot_of_ggplot_comes_back_as_a_picture(client):
    client.run("printf 'city,sales\\nRoma,3\\nParis,5\\n' > sales.csv")
    output, _, shown = in_language(
        client,
        "r",
        """
        suppressPackageStartupMessages({library(ggplot2); library(dplyr); library(readr)})
        sales <- read_csv("sales.csv", show_col_types = FALSE) |> mutate(share = sales / sum(sales))
        print(sales)
        print(ggplot(sales, aes(city, sales)) + geom_col() + ggtitle("Umsätze"))
        write_csv(sales, "shares.csv")
        """,
    )
    contains(output, "0.375")
    equal(len(shown), 1)
    assert shown[0].startswith(b"\x89PNG"), "no PNG"
    contains(client.run("cat shares.csv; ls")[0]["stdout"], "Paris,5,0.625", "figure_1.png")


def a_second_plot_overwrites_none(client):
    in_language(client, "r", "plot(1:3); plot(3:1)")
    contains(client.run("ls")[0]["stdout"], "figure_1.png", "figure_2_1.png", "figure_2_2.png")


def an_error_of_r_ends_the_program(client):
    _, errors, _ = in_language(client, "r", "stop('no such month')", succeeds=False)
    contains(errors, "no such month")


def workbooks_are_read_by_r(client):
    client.run("import pandas; pandas.DataFrame({'a': [1, 2]}).to_excel('a.xlsx', index=False)", "python")
    output, _, _ = in_language(client, "r", "print(sum(readxl::read_excel('a.xlsx')$a))")
    contains(output, "3")


# Ruby and Lua


def ruby_prints_and_writes_files(client):
    output, _, _ = in_language(
        client,
        "ruby",
        """
        require "json"
        require "csv"
        rows = CSV.parse("a,b\\n1,2\\n", headers: true).map(&:to_h)
        puts rows.to_json
        File.write("rows.json", rows.to_json)
        """,
    )
    equal(output, '[{"a":"1","b":"2"}]\n')
    equal(client.run("cat rows.json")[0]["stdout"], '[{"a":"1","b":"2"}]')


def lua_prints_and_writes_files(client):
    output, _, _ = in_language(
        client,
        "lua",
        """
        local json = require("cjson")
        local found = json.decode('{"total": 12}')
        print(_VERSION, found.total)
        local file = io.open("total.txt", "w")
        file:write(found.total)
        file:close()
        """,
    )
    contains(output, "Lua 5.4", "12")
    equal(client.run("cat total.txt")[0]["stdout"], "12")


# SQL


def a_query_is_printed_as_a_table(client):
    client.run("printf 'city,sales\\nRoma,3\\nParis,5\\n' > sales.csv")
    output, _, _ = in_language(client, "sql", "SELECT city, sum(sales) AS total FROM 'sales.csv' GROUP BY 1 ORDER BY 2;")
    equal(output, "city  | total\n------+------\nRoma  |     3\nParis |     5\n(2 rows)\n\n")


def copy_writes_files(client):
    output, _, _ = in_language(
        client,
        "sql",
        """
        COPY (SELECT range AS n, now() AS at FROM range(1000)) TO 'numbers.parquet';
        SELECT * FROM 'numbers.parquet';
        """,
    )
    contains(output, "(1000 rows)", "the first 50 rows")
    equal(client.run("import polars; print(len(polars.read_parquet('numbers.parquet')))", "python")[0]["stdout"], "1000\n")


def an_error_names_its_statement(client):
    output, errors, _ = in_language(client, "sql", "SELECT 1 AS one;\nSELECT missing FROM 'sales.csv';", succeeds=False)
    contains(output, "one")
    contains(errors, "Statement 2 of 2 failed: SELECT missing FROM", "missing")


# Documents

MAKE_DOCUMENTS = """
import docx, pptx, openpyxl
word = docx.Document()
for chapter in range(3):
    word.add_heading(f"Kapitel {chapter + 1}")
    word.add_page_break()
word.save("report.docx")
slides = pptx.Presentation()
for number in range(4):
    slides.slides.add_slide(slides.slide_layouts[0]).shapes.title.text = f"Folie {number + 1}"
slides.save("talk.pptx")
book = openpyxl.Workbook()
for row in range(200):
    book.active.append([row, f"Zeile {row}", row * 1.5])
book.save("numbers.xlsx")
"""


def pages_of_office_documents_are_pictures(client):
    client.run(MAKE_DOCUMENTS, "python")
    for path, pages in (("report.docx", 4), ("talk.pptx", 4), ("numbers.xlsx", 4)):
        for page in (1, 2):
            result, shown = client.page(path, page)
            equal(len(shown), 1)
            equal(result["page"], page)
            assert pages - 1 <= result["pages"] <= pages + 1, result
    refused = client.call("read_artifact", path="talk.pptx", page=9)
    contains(json.dumps(refused["content"]), "this document has 4 pages")
    told = client.call("read_artifact", path="report.docx")["structuredContent"]
    contains(told["advice"], "page shows one of its pages")


def other_formats_of_office_have_pages_too(client):
    client.run(MAKE_DOCUMENTS, "python")
    client.run(
        "soffice --headless --convert-to odt --convert-to doc report.docx\n"
        "soffice --headless --convert-to doc report.docx\n"
        "soffice --headless --convert-to odp talk.pptx\nsoffice --headless --convert-to ppt talk.pptx\n"
        "soffice --headless --convert-to ods numbers.xlsx\nsoffice --headless --convert-to xls numbers.xlsx\n"
    )
    for path in ("report.doc", "talk.odp", "talk.ppt", "numbers.ods", "numbers.xls"):
        equal(len(client.page(path, 2)[1]), 1)


def a_document_that_changes_is_converted_again(client):
    client.run("import docx; word = docx.Document(); word.add_heading('one'); word.save('a.docx')", "python")
    equal(client.page("a.docx", 1)[0]["pages"], 1)
    client.run("word.add_page_break(); word.add_heading('two'); word.save('a.docx')", "python")
    equal(client.page("a.docx", 2)[0]["pages"], 2)


def a_broken_document_is_refused(client):
    client.run("printf 'PK\\003\\004 and no more' > broken.docx")
    refused = client.call("read_artifact", path="broken.docx", page=1)
    contains(json.dumps(refused["content"]), "no PDF or Office document, or a broken one")


def a_document_that_is_too_large_is_refused(client):
    code = """
        import xlsxwriter
        book = xlsxwriter.Workbook("large.xlsx", {"constant_memory": True, "tmpdir": "/mnt/data"})
        sheet = book.add_worksheet()
        for row in range(50_000):
            for column in range(10):
                sheet.write(row, column, row * column + 0.5)
        book.close()
        """
    client.run(textwrap.dedent(code), "python")
    refused = client.call("read_artifact", path="large.xlsx", page=1)
    contains(json.dumps(refused["content"]), "this document takes too much memory or time")


def nothing_of_a_conversion_is_left_running(client):
    client.run(MAKE_DOCUMENTS, "python")
    client.page("talk.pptx", 3)
    equal(client.run("ps_of() { cat /proc/[0-9]*/comm; }; ps_of | grep -c soffice || true")[0]["stdout"], "0\n")


def german_is_read_from_a_picture(client):
    client.run(
        "from PIL import Image, ImageDraw, ImageFont\n"
        "picture = Image.new('RGB', (900, 120), 'white')\n"
        "font = ImageFont.truetype('DejaVuSans.ttf', 36)\n"
        "ImageDraw.Draw(picture).text((20, 30), 'Größe der Straße: fünf Häuser', 'black', font)\n"
        "picture.save('scan.png')",
        "python",
    )
    contains(client.run("tesseract scan.png - -l deu")[0]["stdout"], "Größe der Straße")


def documents_are_written_and_read_by_programs(client):
    client.run("printf '# Titel\\n\\nEin *Text*.\\n' > a.md && pandoc a.md -o b.docx")
    client.run("soffice --headless --convert-to pdf b.docx")
    contains(client.run("pdftotext b.pdf -")[0]["stdout"], "Titel", "Ein Text.")


# More


def the_libraries_can_be_imported(client):
    code = """
        import altair, geopandas, h5py, lightgbm, markdown, pdfplumber, pyreadstat, python_calamine, pytesseract
        import rapidfuzz, requests, sqlalchemy, vl_convert, wordcloud, xgboost, yaml
        import numpy, pandas
        x = numpy.arange(200.0).reshape(-1, 1)
        model = xgboost.XGBRegressor(n_estimators=5, n_jobs=1).fit(x, x[:, 0])
        print(len(model.predict(x)), len(lightgbm.LGBMRegressor(n_estimators=5, verbose=-1).fit(x, x[:, 0]).predict(x)))
        """
    contains(client.run(textwrap.dedent(code), "python")[0]["stdout"], "200 200")


def a_chart_of_altair_is_a_picture(client):
    code = """
        import altair, pandas
        altair.Chart(pandas.DataFrame({"a": [1, 2], "b": [3, 4]})).mark_bar().encode(x="a:O", y="b").save("chart.png")
        """
    equal(len(client.run(textwrap.dedent(code), "python")[1]), 1)


def the_libraries_are_listed(client):
    runtimes = client.ask("tools/call", {"name": "list_runtimes", "arguments": {}})["structuredContent"]["runtimes"]
    [python] = [runtime for runtime in runtimes if runtime["language"] == "python"]
    listed = {package["name"]: package.get("version") for package in python["packages"]}
    assert listed["xgboost"] and listed["geopandas"], listed


CHECKS = {
    "r": (
        a_plot_of_ggplot_comes_back_as_a_picture,
        a_second_plot_overwrites_none,
        an_error_of_r_ends_the_program,
        workbooks_are_read_by_r,
    ),
    "ruby": (ruby_prints_and_writes_files,),
    "lua": (lua_prints_and_writes_files,),
    "sql": (a_query_is_printed_as_a_table, copy_writes_files, an_error_names_its_statement),
    "documents": (
        pages_of_office_documents_are_pictures,
        other_formats_of_office_have_pages_too,
        a_document_that_changes_is_converted_again,
        a_broken_document_is_refused,
        a_document_that_is_too_large_is_refused,
        nothing_of_a_conversion_is_left_running,
        german_is_read_from_a_picture,
        documents_are_written_and_read_by_programs,
    ),
    "more": (the_libraries_can_be_imported, a_chart_of_altair_is_a_picture, the_libraries_are_listed),
}


if __name__ == "__main__":
    program, recipe = sys.argv[1:]
    for check in CHECKS[recipe]:
        client = Client(program) if check is CHECKS[recipe][0] else client
        try:
            check(client)
            print("ok  ", check.__name__.replace("_", " "), flush=True)
        except Exception:
            print("FAIL", check.__name__.replace("_", " "), flush=True)
            traceback.print_exc()
    client.end()
