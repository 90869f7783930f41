// Files that try to run a script in their reader's browser. Each way in leaves a mark of its own on the outermost
// document that it can reach. The link is where a click will go; it is as large without styles, which may be blocked as
// well.
const mark = (way) =>
  `(function(){try{top.document}catch(e){return document}return top.document})()` +
  `.documentElement.setAttribute('data-ran-${way}','')`;

const html = `<!doctype html><title>report</title>
<body onload="${mark("onload")}">
<a href="javascript:${mark("link")};void 0"><table width="300" height="300"><tr><td>report</td></tr></table></a>
<script>${mark("script")}</script>
<script type="module">${mark("module")}</script>
<img src="data:," onerror="${mark("onerror")}">
<svg onload="${mark("svg-onload")}"><script>${mark("svg-script")}</script></svg>
<details open ontoggle="${mark("ontoggle")}">x</details>
<iframe srcdoc="<script>${mark("srcdoc")}</script>"></iframe>
<iframe src="javascript:${mark("frame")};''"></iframe>
`;

const svg = `<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"
  width="300" height="300" onload="${mark("onload")}">
<script>${mark("script")}</script>
<a xlink:href="javascript:${mark("link")};void 0"><rect width="200" height="200" fill="red"/></a>
<image href="data:," onerror="${mark("onerror")}"/>
<foreignObject width="100" height="100" y="200">
  <div xmlns="http://www.w3.org/1999/xhtml"><script>${mark("html-script")}</script></div>
</foreignObject>
</svg>
`;

const xhtml = `<html xmlns="http://www.w3.org/1999/xhtml"><head><title>report</title></head>
<body onload="${mark("onload")}"><script>${mark("script")}</script></body></html>
`;

/** Name, content, and the ways in that a browser without our headers leaves open. */
export const scripted = [
  {
    name: "evil.html",
    content: html,
    ways: [
      "onload", "script", "module", "onerror", "svg-onload", "svg-script", "ontoggle", "srcdoc",
      "frame", "link",
    ],
  },
  {
    name: "evil.svg",
    content: svg,
    ways: ["onload", "script", "onerror", "html-script", "link"],
  },
  { name: "evil.xhtml", content: xhtml, ways: ["onload", "script"] },
];

/** The same page under types that are shown in place: to take it for HTML would be a guess. */
export const disguised = ["evil.txt", "evil.png", "evil.gif"].map((name) => ({
  name,
  content: html,
}));
