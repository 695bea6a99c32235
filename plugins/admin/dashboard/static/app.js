// Theme, menu, keys, local times and live plots: all the script that is ours. Pages work without it.
"use strict";
(() => {
  const root = document.documentElement;
  const byId = (id) => document.getElementById(id);

  byId("theme").addEventListener("click", () => {
    root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
    localStorage.setItem("theme", root.dataset.theme);
    document.dispatchEvent(new Event("theme"));
  });
  byId("menu").addEventListener("click", (event) => {
    const open = byId("side").classList.toggle("open");
    event.currentTarget.setAttribute("aria-expanded", String(open));
  });

  // The local time of a time in UTC, where the pointer rests.
  document.addEventListener("mouseover", (event) => {
    const time = event.target.closest && event.target.closest("time");
    if (time && !time.title) time.title = `${new Date(time.dateTime).toLocaleString()} here`;
  });

  // ---- tables

  // A row whose table is wider than its place is shown as a card: each value under its label.
  const fit = (region) => {
    const table = region.querySelector("table");
    if (!table || !table.tHead) return;
    region.classList.remove("cards");
    if (region.scrollWidth <= region.clientWidth) return;
    const labels = [...table.tHead.rows[0].cells].map((each) => each.textContent.replace(/[▲▼]/, "").trim());
    for (const row of table.tBodies[0].rows)
      for (const cell of row.cells)
        if (cell.colSpan === 1) cell.dataset.label = labels[cell.cellIndex] || "";
    region.classList.add("cards");
  };
  const fitAll = () => {
    for (const cell of document.querySelectorAll(".scroll td")) {
      const text = cell.textContent.trim();
      cell.classList.toggle("long", /\S{25}/.test(text));
      // Names and addresses break behind a hyphen only where they have to.
      cell.classList.toggle("short", text.length <= 16);
    }
    document.querySelectorAll(".scroll").forEach(fit);
    // What is cut is shown whole where the pointer rests, and by the keyboard.
    for (const text of document.querySelectorAll("td.j pre"))
      if (text.scrollHeight > text.clientHeight + 1) {
        text.classList.add("cut");
        text.tabIndex = 0;
      }
  };
  fitAll();
  addEventListener("resize", fitAll);
  document.addEventListener("htmx:after:swap", fitAll);
  document.addEventListener("toggle", fitAll, true);

  // ---- keys

  let wentAt = 0;
  const rowLinks = () => [...document.querySelectorAll("#rows tbody tr a")];
  const step = (by) => {
    const links = rowLinks();
    const at = links.indexOf(document.activeElement);
    const next = links[Math.min(links.length - 1, Math.max(0, at + by))];
    if (next) next.focus();
  };
  document.addEventListener("keydown", (event) => {
    if (event.target.closest("input, select, textarea, dialog")) return;
    if (event.metaKey || event.ctrlKey || event.altKey) return;
    const key = event.key;
    if (Date.now() - wentAt < 1500) {
      wentAt = 0;
      const link = document.querySelector(`nav.side a[data-key="${CSS.escape(key)}"]`);
      if (link) location.href = link.href;
      return;
    }
    if (key === "g") wentAt = Date.now();
    else if (key === "r") location.reload();
    else if (key === "j") step(1);
    else if (key === "k") step(-1);
    else if (key === "?") byId("keys").showModal();
    else if (key === "/") {
      const field = document.querySelector("input[type=search], main input:not([type=hidden])");
      if (field) {
        event.preventDefault();
        field.focus();
      }
    }
  });

  // ---- plots

  const short = (value) => {
    if (value === null || value === undefined) return "–";
    for (const [limit, unit, by] of [[1e12, "T", 1e12], [1e9, "G", 1e9], [1e6, "M", 1e6], [1e4, "k", 1e3]])
      if (Math.abs(value) >= limit) return `${(value / by).toFixed(1)} ${unit}`;
    return Math.abs(value) >= 10 || Number.isInteger(value) ? value.toFixed(0) : String(+value.toFixed(2));
  };
  const charts = [...document.querySelectorAll(".chart")];
  if (!charts.length || !window.uPlot) return;
  const KEPT_S = 3600;
  const PERIOD_S = 5;
  let data = null;
  const plots = [];

  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  // A gap where samples are missing: a line across it would tell of figures that there are not.
  const columnsOf = (names) => {
    const columns = [[], ...names.map(() => [])];
    let before = null;
    data.t.forEach((at, index) => {
      if (before !== null && at - before > 3 * PERIOD_S) {
        columns[0].push(before + PERIOD_S);
        names.forEach((_, each) => columns[each + 1].push(null));
      }
      columns[0].push(at);
      names.forEach((name, each) => columns[each + 1].push(data[name][index]));
      before = at;
    });
    return columns;
  };
  const options = (at, labels) => {
    const axis = {
      stroke: colour("--muted"),
      grid: { stroke: colour("--line"), width: 1 },
      ticks: { stroke: colour("--line"), width: 1 },
    };
    const time = (value) => new Date(value * 1000).toISOString().slice(11, 19);
    return {
      width: at.clientWidth - 2,
      height: 200,
      cursor: { y: false },
      scales: {
        x: { range: (_, low, high) => [Math.min(low ?? high, (high ?? 0) - 300), high] },
        y: { range: (_, low, high) => [0, Math.max(high ?? 0, 1) * 1.1] },
      },
      series: [
        { label: "UTC", value: (_, value) => (value === null || value === undefined ? "–" : time(value)) },
        ...labels.map((label, index) => ({
          label,
          stroke: colour(`--c${index + 1}`),
          width: 2,
          dash: [undefined, [6, 4], [2, 3]][index],
          points: { show: false },
          value: (_, value) => short(value),
        })),
      ],
      axes: [
        { ...axis, space: 90, values: (_, values) => values.map((value) => time(value).slice(0, 5)) },
        { ...axis, size: 60, values: (_, values) => values.map(short) },
      ],
    };
  };
  const draw = () => {
    plots.splice(0).forEach((each) => each.plot.destroy());
    for (const at of charts) {
      const series = at.dataset.series.split(";").map((each) => each.split("="));
      const names = series.map(([name]) => name);
      const labels = series.map(([, label]) => label);
      plots.push({ at, names, plot: new window.uPlot(options(at, labels), columnsOf(names), at) });
    }
    root.dataset.drawn = "yes";
  };
  const show = (state, text) => {
    const live = byId("live");
    live.hidden = false;
    live.className = `pill ${state}`;
    live.textContent = text;
  };
  const add = (sample) => {
    for (const name of Object.keys(data)) data[name].push(sample[name] ?? null);
    while (data.t.length && data.t[0] < sample.t - KEPT_S)
      for (const name of Object.keys(data)) data[name].shift();
    for (const tile of document.querySelectorAll("[data-live]"))
      tile.textContent = short(sample[tile.dataset.live]);
    plots.forEach((each) => each.plot.setData(columnsOf(each.names)));
  };

  let stream = null;
  const begin = async () => {
    const answer = await fetch("/history");
    if (!answer.ok) return;
    data = await answer.json();
    draw();
    stream = new EventSource("/events");
    stream.onopen = () => show("ok", "● live");
    stream.onerror = () =>
      stream.readyState === EventSource.CLOSED
        ? show("off", "○ too many pages are live")
        : show("warn", "▲ reconnecting");
    stream.onmessage = (event) => add(JSON.parse(event.data));
  };
  // A page that no one sees needs no connection: browsers have six for each host.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden && stream) {
      stream.close();
      stream = null;
    } else if (!document.hidden && !stream) begin();
  });
  document.addEventListener("theme", () => data && draw());
  addEventListener("resize", () =>
    plots.forEach((each) => each.plot.setSize({ width: each.at.clientWidth - 2, height: 200 })),
  );
  begin();
})();
