// Uploads into a session: by a button, or dropped onto the page.

/** Whether files can be uploaded: a page that was opened by a signed URL may only look. */
let canUpload = false;

const picker = el("input", { type: "file", multiple: true, hidden: true });
picker.addEventListener("change", () => {
  for (const file of picker.files) upload(file);
  picker.value = "";
});
const uploadButton = button("Upload", { id: "upload", className: "quiet" }, () => picker.click());
const uploads = el("div", { id: "uploads", role: "status" });

function allowUploads(session) {
  canUpload = !signature && session.state !== "archived";
  uploadButton.hidden = !canUpload;
}

/** Uploads a file, and replaces one of the same name only if the person says so. */
async function upload(file, mayReplace = false) {
  const line = el("p", { className: "row" }, `${legible(file.name)}: uploading, ${size(file.size)}`);
  uploads.append(line);
  const url = `${root}files/${one[2]}/${encodeURIComponent(file.name)}`;
  const headers = { ...authorization(), ...(mayReplace ? {} : { "If-None-Match": "*" }) };
  const response = await fetch(url, { method: "PUT", headers, body: file }).catch(() => null);
  if (response?.ok) {
    line.remove();
    say(`${legible(file.name)} has been uploaded.`);
    return;
  }
  const dismiss = button("Dismiss", { className: "quiet" }, () => line.remove());
  if (response?.status === 412) {
    const replace = button("Replace it", {}, () => {
      line.remove();
      upload(file, true);
    });
    line.replaceChildren(`${legible(file.name)} already exists.`, replace, dismiss);
    return;
  }
  const { message } = (await response?.json().catch(() => null)) ?? {};
  line.replaceChildren(`${legible(file.name)} was not uploaded. ${message ?? "The server does not answer, or the file is too large."}`, dismiss);
}

const hasFiles = (event) => canUpload && event.dataTransfer?.types.includes("Files");
document.addEventListener("dragover", (event) => {
  if (!hasFiles(event)) return;
  event.preventDefault();
  document.body.dataset.drop = "";
});
document.addEventListener("dragleave", (event) => {
  if (!event.relatedTarget) delete document.body.dataset.drop;
});
document.addEventListener("drop", (event) => {
  if (!hasFiles(event)) return;
  event.preventDefault();
  delete document.body.dataset.drop;
  // A folder has no bytes of its own, and reading it fails.
  for (const item of event.dataTransfer.items) if (item.webkitGetAsEntry?.()?.isFile !== false) upload(item.getAsFile());
});
