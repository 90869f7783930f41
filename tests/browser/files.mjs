// Small files of the kinds that the page shows as text and tables, made without libraries.

/** A program that writes an Excel, a Word and a PowerPoint file: ZIP files of XML. */
export const OFFICE = `
import zipfile

def office(name, parts):
    with zipfile.ZipFile(name, 'w', zipfile.ZIP_DEFLATED) as file:
        for path, text in parts.items():
            file.writestr(path, text)

def refers(*targets):
    items = ''.join(f'<Relationship Id="rId{n}" Target="{target}"/>' for n, target in enumerate(targets, 1))
    return f'<Relationships xmlns="p">{items}</Relationships>'

r = 'xmlns:r="r"'
cell = lambda at, kind, value: f'<c r="{at}" {kind}><v>{value}</v></c>'
office('book.xlsx', {
    'xl/workbook.xml': f'<workbook {r}><sheets><sheet name="Sales &amp; costs" sheetId="1" r:id="rId1"/></sheets></workbook>',
    'xl/_rels/workbook.xml.rels': refers('worksheets/sheet1.xml'),
    'xl/sharedStrings.xml': '<sst><si><t>day</t></si><si><t>units</t></si><si><r><t>Zü</t></r><r><t>rich</t></r></si></sst>',
    'xl/styles.xml': '<styleSheet><cellXfs><xf numFmtId="0"/><xf numFmtId="14"/></cellXfs></styleSheet>',
    'xl/worksheets/sheet1.xml': '<worksheet><sheetData><row>' + cell('A1', 't="s"', 0) + cell('C1', 't="s"', 1) + '</row><row>'
        + cell('A2', 's="1"', 46023) + cell('B2', 't="s"', 2) + cell('C2', '', 1.5) + '</row></sheetData></worksheet>',
})
w = 'xmlns:w="w"'
office('report.docx', {'word/document.xml': f'<w:document {w}><w:body>'
    '<w:p><w:pPr><w:pStyle w:val="Heading1"/></w:pPr><w:r><w:t>Summary</w:t></w:r></w:p>'
    '<w:p><w:r><w:t>It grew &lt;b&gt;</w:t></w:r></w:p>'
    '<w:tbl><w:tr><w:tc><w:p><w:r><w:t>Region</w:t></w:r></w:p></w:tc></w:tr><w:tr><w:tc><w:p><w:r><w:t>North</w:t></w:r></w:p></w:tc></w:tr></w:tbl>'
    '</w:body></w:document>'})
a = 'xmlns:a="a" xmlns:p="p"'
office('talk.pptx', {
    'ppt/presentation.xml': f'<p:presentation {a} {r}><p:sldIdLst><p:sldId id="256" r:id="rId1"/></p:sldIdLst></p:presentation>',
    'ppt/_rels/presentation.xml.rels': refers('slides/slide1.xml'),
    'ppt/slides/slide1.xml': f'<p:sld {a}><p:sp><p:nvPr><p:ph type="title"/></p:nvPr><a:p><a:r><a:t>Results</a:t></a:r></a:p></p:sp><p:sp><a:p><a:r><a:t>Sales up</a:t></a:r></a:p></p:sp></p:sld>',
})
office('bomb.docx', {'word/document.xml': '<!DOCTYPE d [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]><d>&b;</d>'})
office('large.docx', {'word/document.xml': '<d>' + ' ' * (20 << 20) + '</d>'})
`;

/** Three rows with a date, a text that is missing once, and a number; dictionaries, Snappy. */
export const PARQUET = Buffer.from(
  "UEFSMRUEFTAVNEwVBhUAEgAAGFwAQCBGSEcGAACg92NcRwYAAADPgXBHBgAVABUUFRgsFQYVEBUGFQYcAAAACiQCAAAABgECAyQAFQQVIhUmTBUEFQASAAARQAUAAABOb3J0aAQAAABTw7xkFQAVEhUWLBUGFRAVBhUGHAAAAAkgAgAAAAMDAQMCFQQVMBUuTBUGFQASAAAYBAEACQE8AgAAAAAAAAADAAAAAAAAABUAFRQVGCwVBhUQFQYVBhwAAAAKJAIAAAAGAQIDJAAVBBlMNQAYBnNjaGVtYRUGABUEJQIYA2RheSUUTIwSHCwAAAAAABUMJQIYBnJlZ2lvbiUATBwAAAAVBCUCGAV1bml0cwAWBhkcGTwmABwVBBk1AAYQGRgDZGF5FQIWBhaGARaOASZYJggpLBUEFQAVAgAVABUQFQIAPCkGGSYABgAAACYAHBUMGTUABhAZGAZyZWdpb24VAhYGFnYWfibYASaWASksFQQVABUCABUAFRAVAgA8FhIZBhkmAgQAAAAmABwVBBk1AAYQGRgFdW5pdHMVAhYGFoYBFogBJt4CJpQCKSwVBBUAFQIAFQAVEBUCADwpBhkmAAYAAAAWggMWBiYIFpQDACggcGFycXVldC1jcHAtYXJyb3cgdmVyc2lvbiAyNi4wLjEZPBwAABwAABwAAAA1AQAAUEFSMQ==",
  "base64",
);

export const MARKDOWN = `# Title

Some *text* with \`code\`, a [link](https://example.org/), [a file](notes.txt) and [a script](javascript:alert(1)).

- one
  - nested
1. first

| a | b |
|---|--:|
| 1 | **2** |

<script>document.documentElement.dataset.ran = 1</script>
`;

/** A notebook with the outputs of a cell. */
export const notebook = (...outputs) =>
  JSON.stringify({
    nbformat: 4,
    cells: [
      { cell_type: "markdown", source: ["## Analysis\n", "Some **bold** text."] },
      { cell_type: "code", execution_count: 7, source: "print('hi')", outputs },
    ],
  });
