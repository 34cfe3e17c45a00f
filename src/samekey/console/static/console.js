/* The console's only own script: live figures, charts, dialogs, keys, copying. Pages work without it, except charts. */
(() => {
  "use strict";
  const body = document.body;
  const byId = (id) => document.getElementById(id);

  // -- charts: uPlot draws into .plot boxes, with the colours of the page ------------------------------------------

  let drawn = [];
  const colourOf = (name) => {
    const probe = document.createElement("span");
    probe.className = "probe t-" + name;
    body.append(probe);
    const colour = getComputedStyle(probe).color; // a custom property would come back as light-dark(...)
    probe.remove();
    return colour;
  };
  const draw = () => {
    for (const chart of drawn) chart.destroy();
    drawn = [];
    for (const box of document.querySelectorAll("[data-chart]")) {
      const data = JSON.parse(box.dataset.chart);
      const width = box.clientWidth, height = box.clientHeight;
      if (!data.times.length || !width || !height) continue;
      const colour = colourOf(box.dataset.colour), bars = "bars" in box.dataset;
      drawn.push(new uPlot({
        width, height,
        legend: { show: false },
        cursor: { sync: { key: "samekey" }, points: { show: false }, y: false, drag: { x: false, y: false } },
        padding: [2, 0, 2, 0],
        axes: [{ show: false }, { show: false }],
        scales: { x: bars ? { range: (u, low, high) => [low - 43200, high + 43200] } : {}, y: { range: (u, low, high) => [0, high > 0 ? high : 1] } },
        series: [{}, { stroke: colour, width: 1.75, points: { show: false }, paths: bars ? uPlot.paths.bars({ size: [.6, 48] }) : undefined, fill: colour.replace("rgb(", "rgba(").replace(")", ", .16)") }],
      }, [data.times, data.values], box));
    }
  };
  let resizing = 0;
  addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(draw, 100); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

  // -- what a page needs after it came, or after a part of it was swapped -------------------------------------------

  let rows = [], at = -1;
  const ready = () => {
    draw();
    rows = [...document.querySelectorAll("[data-row]")];
    at = -1;
    const dialog = document.querySelector("dialog[data-show]");
    if (dialog && !dialog.open) {
      dialog.showModal();
      const field = dialog.querySelector("textarea");
      if (field) field.focus();
    }
    count();
  };
  const count = () => {
    const shown = byId("picked");
    if (!shown) return;
    const boxes = [...document.querySelectorAll("input[name=pick]")];
    shown.textContent = String(boxes.filter((one) => one.checked).length);
    for (const one of boxes) one.closest("tr").classList.toggle("sel", one.checked);
  };
  document.addEventListener("change", (event) => {
    const target = event.target;
    if (target.id === "pick-all") for (const one of document.querySelectorAll("input[name=pick]")) one.checked = target.checked;
    if (target.name === "pick" || target.id === "pick-all") {
      const chosen = document.querySelector("input[name=scope][value=chosen]");
      if (chosen) chosen.checked = true;
      count();
    }
    if (target.dataset && target.dataset.button) byId("settle").textContent = target.dataset.button;
  });
  document.addEventListener("click", (event) => {
    const target = event.target.closest("[data-close],[data-copy]");
    if (!target) return;
    if ("close" in target.dataset) { event.preventDefault(); target.closest("dialog").close(); }
    if (target.dataset.copy && navigator.clipboard) navigator.clipboard.writeText(byId(target.dataset.copy).textContent);
  });
  document.addEventListener("htmx:afterSettle", ready);
  // A form that is being typed in is never swapped by a live update.
  document.addEventListener("htmx:beforeSwap", (event) => {
    const live = event.detail.target && event.detail.target.id === "live-part";
    if (live && event.detail.target.contains(document.activeElement) && document.activeElement.matches("input,textarea,select")) event.detail.shouldSwap = false;
  });
  // An action without a sign-in: the notice comes, and what was typed stays.
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.xhr.status !== 401) return;
    event.detail.target = byId("notices");
    event.detail.selectOverride = "#notices";
    event.detail.swapOverride = "innerHTML";
  });

  // -- live figures ---------------------------------------------------------------------------------------------------

  const figure = (id, number, more) => {
    const shown = byId(id);
    if (!shown) return;
    shown.hidden = !number;
    shown.firstElementChild.textContent = number + (more ? "+" : "");
  };
  const listen = () => {
    const state = byId("live"), text = byId("live-text");
    let mark = null;
    const source = new EventSource(body.dataset.live);
    const lost = (why) => { state.classList.add("lost"); text.textContent = why; };
    source.addEventListener("figures", (event) => {
      const facts = JSON.parse(event.data);
      state.classList.remove("lost");
      text.textContent = "Live, " + facts.clock + " UTC";
      figure("n-doubts", facts.doubts, facts.more);
      figure("n-doubled", facts.doubled);
      figure("n-claims", facts.claims);
      if (mark !== null && mark !== facts.mark) {
        const fresh = byId("new-rows");
        if (fresh) fresh.hidden = false;
      }
      mark = facts.mark;
      if (window.htmx && byId("live-part")) htmx.trigger(body, "sk-live");
    });
    source.addEventListener("silent", (event) => lost("No answer, " + JSON.parse(event.data).clock + " UTC"));
    source.addEventListener("error", () => lost("Live updates stopped"));
    addEventListener("pagehide", () => source.close());
  };

  // -- keys -------------------------------------------------------------------------------------------------------------

  const pages = { o: "/", p: "/operations", d: "/doubts", u: "/duplicates" };
  let going = 0;
  const select = (step) => {
    if (!rows.length) return;
    at = Math.min(rows.length - 1, Math.max(0, at + step));
    const link = rows[at].querySelector("a");
    if (link) link.focus();
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input,textarea,select,dialog")) return;
    const root = document.querySelector(".mark").getAttribute("href").replace(/\/$/, "");
    if (Date.now() - going < 1500 && pages[event.key]) { location.assign(root + pages[event.key]); return; }
    if (event.key === "g") going = Date.now();
    if (event.key === "/") { event.preventDefault(); byId("q").focus(); }
    if (event.key === "j") select(1);
    if (event.key === "k") select(-1);
    if (event.key === "x" && rows[at]) { const box = rows[at].querySelector("input[name=pick]"); if (box) box.click(); }
    if (event.key === "?") byId("keys").showModal();
  });

  ready();
  if (body.dataset.live) listen();
})();
