// Keeps the content of an open page up to date: the stream says that something changed, and the
// script reads the page again and replaces its content. Everything works without it.
"use strict";
(() => {
  const view = document.body.dataset.view;
  const html = window.trustedTypes
    ? trustedTypes.createPolicy("gpuaas", { createHTML: (text) => text })
    : { createHTML: (text) => text };
  const oldAfter = 30000, readAfter = 25000;
  let source = null, busy = false, again = false, timer = 0, failures = 0, cause = "";
  const main = () => document.getElementById("main");
  const visible = () => document.visibilityState === "visible";

  // editing reports whether the person is filling in a form, which must not be replaced.
  const editing = () => {
    const e = document.activeElement;
    return !!e && main().contains(e) && /^(INPUT|TEXTAREA|SELECT)$/.test(e.tagName);
  };

  // replace shows new content and keeps the focus, the open details and the place on the page.
  const replace = (text) => {
    const doc = new DOMParser().parseFromString(html.createHTML(text), "text/html");
    const next = doc.getElementById("main");
    if (!next) { location.reload(); return; }
    const focused = document.activeElement && main().contains(document.activeElement) ? document.activeElement.id : "";
    for (const d of main().querySelectorAll("details[id][open]")) {
      const same = next.querySelector("#" + CSS.escape(d.id));
      if (same) same.open = true;
    }
    const x = scrollX, y = scrollY;
    main().replaceWith(document.adoptNode(next));
    if (focused) (document.getElementById(focused) || main()).focus({ preventScroll: true });
    scrollTo(x, y);
    age();
  };

  const read = async () => {
    if (busy) { again = true; return; }
    if (!visible() || editing()) { later(2000); return; }
    busy = true;
    try {
      const answer = await fetch(location.href, { headers: { "Gpuaas-Region": "1" }, cache: "no-store" });
      if (answer.status === 401) { location.reload(); return; }
      const text = await answer.text();
      if (answer.ok) { failures = 0; cause = ""; replace(text); } else failed(message(text) || `the status is ${answer.status}`);
    } catch (e) { failed("gpuaas-api does not respond"); }
    busy = false;
    if (again) { again = false; later(0); } else later(readAfter * (1 + Math.min(failures, 5)));
  };

  // failed keeps the content that is shown, and says why there is no newer one.
  const failed = (why) => { failures++; cause = why; age(); };

  // message is the text of a page that is an error.
  const message = (text) => {
    const p = new DOMParser().parseFromString(html.createHTML(text), "text/html").querySelector(".message");
    return p ? p.textContent.trim() : "";
  };

  // later reads the page after a time, with jitter, so that pages do not read at the same time.
  const later = (ms) => {
    clearTimeout(timer);
    timer = setTimeout(read, ms + Math.random() * Math.min(ms + 400, 4000));
  };

  // age says how old the data is and why, and turns old data gray.
  const age = () => {
    const at = document.getElementById("age");
    if (!at) return;
    const ms = Date.now() - readAt();
    main().classList.toggle("old", ms > oldAfter);
    const old = `This data is ${Math.round(ms / 1000)} s old`;
    const text = cause ? `${old}: ${cause}.` : ms > oldAfter ? `${old}.` : "Up to date.";
    if (at.textContent !== text) at.textContent = text;
  };
  // The time of the last read by this machine's clock, which may differ from the server's.
  const seen = { rev: null, at: "", local: Date.now() };
  const readAt = () => {
    if (main().dataset.at !== seen.at) { seen.at = main().dataset.at; seen.local = Date.now(); }
    return seen.local;
  };

  const connect = () => {
    if (source || !visible()) return;
    const rev = encodeURIComponent(main().dataset.rev);
    source = new EventSource(`/console/events?view=${encodeURIComponent(view)}&rev=${rev}`);
    source.addEventListener("rev", (e) => { if (e.data !== main().dataset.rev) later(0); });
    source.addEventListener("error", () => {
      if (source && source.readyState === EventSource.CLOSED) {
        source = null;
        setTimeout(connect, 5000 + Math.random() * 15000);
        later(1000);
      }
    });
  };

  // A hidden page has no stream: a browser has six connections to a host.
  const visibility = () => {
    if (visible()) { connect(); later(0); } else if (source) { source.close(); source = null; }
  };

  // keys: / goes to the first filter, g then a letter to a page of the navigation.
  let prefix = 0;
  addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(e.target.tagName)) return;
    const first = document.querySelector("form.filter input");
    if (e.key === "/" && first) { first.focus(); e.preventDefault(); }
    if (e.key === "g") { prefix = Date.now(); return; }
    if (Date.now() - prefix > 1500) return;
    prefix = 0;
    for (const a of document.querySelectorAll("nav a")) {
      if (a.textContent.toLowerCase().startsWith(e.key)) { a.click(); return; }
    }
  });

  // A form is sent once.
  addEventListener("submit", (e) => {
    if (e.target.dataset.sent) { e.preventDefault(); return; }
    if (e.target.method === "post") e.target.dataset.sent = "true";
  });
  addEventListener("pageshow", () => { for (const f of document.forms) delete f.dataset.sent; });

  if (view) {
    connect();
    later(readAfter);
    setInterval(age, 1000);
    document.addEventListener("visibilitychange", visibility);
  }
})();
