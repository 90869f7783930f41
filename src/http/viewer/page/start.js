// The start of the page, after all other parts.

$("home").href = root;
$("leave").hidden = token.get() === null;
$("leave").addEventListener("click", () => {
  token.forget();
  location.reload();
});
if (one) follow(`sessions/${one[2]}`, showSession);
else if (new URLSearchParams(location.search).has("all")) follow("sessions?all", showAll);
else follow("sessions", showSessions);
