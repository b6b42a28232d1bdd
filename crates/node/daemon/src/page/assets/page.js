"use strict";
// Reads the overview now and then, and brings the document up to it. Texts only ever become text nodes.
(() => {
  const REFRESH_MS = 2000;
  const TREND_POINTS = 60;
  const COLUMN_NODES_MAX = 24;
  const TOKEN_KEY = "provost-token";

  const byId = (id) => document.getElementById(id);
  const state = {
    token: sessionStorage.getItem(TOKEN_KEY) ?? "",
    paused: false,
    filter: "",
    overview: null,
    role: "",
    showsTaps: false,
    samples: [],
    tapsNote: "",
    before: null, // The call paths of an earlier overview, to tell rates by.
    pathRates: new Map(),
    trends: new Map(),
    totals: [],
    known: null, // What has been announced.
    timer: 0,
  };

  // Texts of numbers and times.

  const count = (number) => Math.round(number).toLocaleString("en").replaceAll(",", "\u202f");
  const plural = (number, word, words = word + "s") => `${count(number)} ${number === 1 ? word : words}`;

  function rate(perSecond) {
    if (perSecond === 0) return "0";
    if (perSecond < 0.1) return "< 0.1";
    return perSecond < 100 ? perSecond.toFixed(1) : count(perSecond);
  }

  function duration(us) {
    if (us === 0) return "–";
    if (us < 1000) return `${us < 10 ? us.toFixed(1) : Math.round(us)} µs`;
    if (us < 1e6) return `${(us / 1e3).toFixed(us < 1e4 ? 2 : 1)} ms`;
    return `${(us / 1e6).toFixed(2)} s`;
  }

  function age(seconds) {
    if (seconds < 60) return `${Math.floor(seconds)} s`;
    if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
    if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
    return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
  }

  function bytes(number) {
    const units = ["B", "KiB", "MiB", "GiB"];
    let at = 0;
    for (; number >= 1024 && at < units.length - 1; at += 1) number /= 1024;
    return `${at === 0 ? number : number.toFixed(1)} ${units[at]}`;
  }

  const share = (part, all) => (all === 0 ? 0 : part / all);
  const percent = (of) => (of > 0 && of < 0.001 ? "< 0.1 %" : `${(of * 100).toFixed(of < 0.1 ? 1 : 0)} %`);
  const atTime = (unixUs) => new Date(unixUs / 1000).toLocaleTimeString("en-GB");
  const ago = (unixUs) => `${age(Math.max(0, Date.now() / 1000 - unixUs / 1e6))} ago`;
  const onDate = (unixS) => new Date(unixS * 1000).toISOString().slice(0, 16).replace("T", " ") + " UTC";

  // Elements.

  function element(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes ?? {})) made.setAttribute(name, value);
    made.append(...children.filter((child) => child !== null));
    return made;
  }

  function drawn(tag, attributes, ...children) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  function setText(target, text) {
    if (target.textContent !== text) target.textContent = text;
  }

  // What an element was made from is kept with it: it is left alone, with the focus and what is unfolded in it, until that changes.
  function setContent(target, signature, make) {
    if (target.dataset.of === signature) return;
    target.dataset.of = signature;
    target.replaceChildren(...make());
  }

  function setList(list, texts) {
    setContent(list, JSON.stringify(texts), () => texts.map((text) => element("li", null, text)));
  }

  // Tables.

  // A column: `title`, `of(row)` what it is sorted by, `show(row)` its text where that differs, `make(row)` its nodes where text
  // does not do. The first column with `head` names the row.
  class DataTable {
    constructor(id, caption, columns, { key, sort, extra, empty }) {
      this.table = byId(`${id}-table`);
      this.columns = columns;
      this.key = key;
      this.extra = extra;
      this.empty = empty;
      this.sort = sort ?? null;
      this.rows = new Map();
      this.caption = element("caption", null, caption);
      this.body = element("tbody");
      this.heads = columns.map((column) => this.headOf(column));
      this.table.append(this.caption, element("thead", null, element("tr", null, ...this.heads)), this.body);
      this.markSort();
    }

    headOf(column) {
      const head = element("th", { scope: "col" });
      if (column.number) head.classList.add("number");
      if (!column.of) {
        head.append(column.title);
        return head;
      }
      const button = element("button", { type: "button" }, column.title);
      button.addEventListener("click", () => this.sortBy(column));
      head.append(button);
      return head;
    }

    sortBy(column) {
      const isSame = this.sort?.column === column.title;
      const descends = isSame ? !this.sort.descends : Boolean(column.number);
      this.sort = { column: column.title, descends };
      this.markSort();
      this.draw(this.last);
      announce(`Sorted by ${column.title}, ${descends ? "largest first" : "smallest first"}.`);
    }

    markSort() {
      this.columns.forEach((column, at) => {
        if (this.sort?.column === column.title) {
          this.heads[at].setAttribute("aria-sort", this.sort.descends ? "descending" : "ascending");
        } else {
          this.heads[at].removeAttribute("aria-sort");
        }
      });
    }

    sorted(rows) {
      const column = this.columns.find((one) => one.title === this.sort?.column);
      if (!column) return rows;
      const sign = this.sort.descends ? -1 : 1;
      const compare = (one, other) => {
        const [left, right] = [column.of(one), column.of(other)];
        return typeof left === "number" ? left - right : String(left).localeCompare(String(right));
      };
      // It is stable: rows that are alike in this column stay in the node's order.
      return [...rows].sort((one, other) => sign * compare(one, other));
    }

    draw(rows) {
      this.last = rows;
      const shown = this.sorted(rows);
      const keys = new Set();
      const lines = shown.flatMap((row) => {
        const key = this.key(row);
        keys.add(key);
        if (!this.rows.has(key)) this.rows.set(key, this.newRow());
        const made = this.rows.get(key);
        this.fill(made, row);
        return made.extra ? [made.line, made.extra] : [made.line];
      });
      for (const key of [...this.rows.keys()]) if (!keys.has(key)) this.rows.delete(key);
      if (lines.length === 0) lines.push(this.emptyLine());
      // Lines that stand where they should are not touched, so that the focus stays.
      lines.forEach((line, at) => {
        if (this.body.children[at] !== line) this.body.insertBefore(line, this.body.children[at] ?? null);
      });
      while (this.body.children.length > lines.length) this.body.lastElementChild.remove();
    }

    newRow() {
      const cells = this.columns.map((column) => {
        const cell = element(column.head ? "th" : "td", column.head ? { scope: "row" } : null);
        cell.className = [column.number ? "number" : "", column.style ?? ""].join(" ").trim();
        return cell;
      });
      const line = element("tr", null, ...cells);
      if (!this.extra) return { line, cells };
      line.className = "lead";
      const wide = element("td", { colspan: String(this.columns.length) });
      return { line, cells, wide, extra: element("tr", null, wide) };
    }

    fill(made, row) {
      this.columns.forEach((column, at) => {
        const cell = made.cells[at];
        if (column.make) {
          const [signature, make] = column.make(row);
          setContent(cell, signature, make);
        } else {
          setText(cell, String(column.show ? column.show(row) : column.of(row)));
        }
      });
      if (this.extra) {
        const [signature, make] = this.extra(row);
        setContent(made.wide, signature, make);
      }
    }

    emptyLine() {
      const text = state.filter ? "Nothing here matches the filter." : this.empty;
      const cell = element("td", { colspan: String(this.columns.length) }, text);
      return element("tr", { class: "empty" }, cell);
    }

    say(caption) {
      setText(this.caption, caption);
    }
  }

  const named = (strong, soft) => [
    `${strong}|${soft}`,
    () => [strong, ...(soft ? [" ", element("span", { class: "soft" }, soft)] : [])],
  ];
  const styled = (style, text) => [`${style}|${text}`, () => (style ? [element("span", { class: style }, text)] : [text])];
  const folded = (title, text) => [
    `${title}|${text}`,
    () => [element("details", null, element("summary", null, title), element("pre", null, text))],
  ];

  const pathKey = (path) => [path.app, path.side, path.service, path.peer, path.transport].join("\u0000");
  const methodKey = (method) => [method.app, method.side, method.service, method.method].join("\u0000");

  const tables = {
    paths: new DataTable("paths", "Connections of the same two, of the same service, are one row.", [
      { title: "App here", of: (path) => path.app, head: true },
      { title: "It", of: (path) => (path.side === "client" ? "calls" : "serves") },
      { title: "Service", of: (path) => path.service },
      { title: "Other end", of: (path) => path.peer, style: "wide" },
      { title: "Over", of: (path) => path.transport },
      { title: "Connections", of: (path) => path.connections, show: (path) => count(path.connections), number: true },
      { title: "Calls/s", of: rateOfPath, show: (path) => rate(rateOfPath(path)), number: true },
      { title: "Under way", of: (path) => path.calls_in_flight, show: (path) => count(path.calls_in_flight), number: true },
    ], { key: pathKey, sort: { column: "Calls/s", descends: true }, empty: "Nobody is connected." }),

    traffic: new DataTable("traffic", "", [
      { title: "Service and method", of: (method) => `${method.service}/${method.method}`, head: true, style: "wide",
        make: (method) => named(method.method, method.service) },
      { title: "App", of: (method) => method.app },
      { title: "Side", of: (method) => method.side || "both" },
      { title: "Calls/s", of: (method) => method.rate, show: (method) => rate(method.rate), number: true },
      { title: "Last minutes", make: trendOf },
      { title: "Failed/s", of: (method) => method.error_rate, number: true, make: failuresOf },
      { title: "p50", of: (method) => method.latency_us_p50, show: (method) => duration(method.latency_us_p50), number: true },
      { title: "p99", of: (method) => method.latency_us_p99, show: (method) => duration(method.latency_us_p99), number: true },
      { title: "Under way", of: (method) => method.in_flight, show: (method) => count(method.in_flight), number: true },
      { title: "Calls so far", of: (method) => method.calls, show: (method) => count(method.calls), number: true },
    ], { key: methodKey, sort: { column: "Calls/s", descends: true }, empty: "No call has been counted yet." }),

    datapaths: new DataTable("datapaths", "", [
      { title: "No.", of: (path) => path.connection, number: true },
      { title: "App", of: (path) => path.app, head: true, make: (path) => named(path.app, path.side) },
      { title: "Service", of: (path) => path.service },
      { title: "Other end", of: (path) => path.peer_identity || path.peer, style: "wide",
        make: (path) => (path.peer_identity ? named(path.peer_identity, path.peer) : named(path.peer, "")) },
      { title: "Over", of: (path) => path.transport, make: (path) => named(path.transport, path.encoding) },
      { title: "Calls so far", of: (path) => path.calls_begun, show: (path) => count(path.calls_begun), number: true },
      { title: "Under way", of: (path) => path.calls_in_flight, show: (path) => count(path.calls_in_flight), number: true },
    ], { key: (path) => path.connection, extra: chainOf, empty: "There is no connection." }),

    policies: new DataTable("policies", "In the order in which a call meets them on its way out.", [
      { title: "No.", show: (attached) => attached.position + 1, number: true },
      { title: "Policy", head: true, make: (attached) => named(attached.policy.name, `${attached.policy.kind} version ${attached.policy.version}`) },
      { title: "Applies to", show: scopeOf, style: "wide" },
      { title: "Datapaths", show: (attached) => count(attached.datapaths), number: true },
      { title: "Calls judged", number: true, make: judgedOf },
      { title: "From", show: (attached) => attached.origin },
      { title: "Configuration", make: (attached) => attached.policy.config.trim()
          ? folded("Show", attached.policy.config.trim()) : styled("soft", "defaults") },
    ], { key: (attached) => attached.policy.name, empty: "No policy is attached." }),

    engines: new DataTable("engines", "The code that handles calls: each kind by version, and how many datapaths have it.", [
      { title: "Engine", of: (engine) => engine.kind, head: true, style: "name" },
      { title: "Version", of: (engine) => engine.version, number: true },
      { title: "Datapaths", of: (engine) => engine.datapaths, show: (engine) => count(engine.datapaths), number: true },
      { title: "New datapaths get it", show: (engine) => (engine.current ? "yes" : "no") },
      { title: "What it does", show: (engine) => engine.summary, style: "wide" },
      { title: "From", show: (engine) => engine.source, style: "wide" },
    ], { key: (engine) => `${engine.kind} ${engine.version}`, empty: "There are none." }),

    changes: new DataTable("changes", "The newest first; since this process began.", [
      { title: "When", show: (change) => atTime(change.began_unix_us), style: "name" },
      { title: "Change", head: true, style: "wide", make: (change) => named(change.summary, change.problem) },
      { title: "State", make: stateOfChange },
      { title: "Datapaths", show: (change) => count(change.datapaths), number: true },
      { title: "Longest pause", show: (change) => duration(change.pause_us_max), number: true },
      { title: "Number", show: (change) => change.number || "–", number: true },
    ], { key: (change) => change.id, empty: "Nothing was changed since this process began." }),

    taps: new DataTable("taps", "The newest first; what is to be redacted is redacted.", [
      { title: "When", show: (sample) => atTime(sample.at_unix_us), style: "name" },
      { title: "Method", head: true, show: (sample) => sample.method },
      { title: "App", make: (sample) => named(sample.app, sample.side) },
      { title: "Other end", show: (sample) => sample.peer, style: "wide" },
      { title: "Status", make: (sample) => statusOf(sample.status) },
      { title: "Took", of: (sample) => sample.duration_us, show: (sample) => duration(sample.duration_us), number: true },
      { title: "Call", make: (sample) => folded("Show", indented(sample.json)) },
    ], { key: (sample) => `${sample.policy} ${sample.at_unix_us} ${sample.call} ${sample.side}`, empty: "No call was sampled yet." }),

    apps: new DataTable("apps", "", [
      { title: "No.", of: (app) => app.id, number: true },
      { title: "App", of: (app) => app.name, head: true },
      { title: "Process", show: (app) => app.grpc_origin || `${app.pid}, user ${app.uid}`, style: "wide" },
      { title: "Serves", show: (app) => app.serves.join(", ") || "–", style: "wide" },
      { title: "Connections", of: (app) => app.connections, show: (app) => count(app.connections), number: true },
      { title: "Under way", of: (app) => app.calls_in_flight, show: (app) => count(app.calls_in_flight), number: true },
      { title: "Send heap", of: (app) => app.send_heap_bytes, show: (app) => bytes(app.send_heap_bytes), number: true },
      { title: "Receive heap", of: (app) => app.receive_heap_bytes, show: (app) => bytes(app.receive_heap_bytes), number: true },
    ], { key: (app) => app.id, empty: "No app is attached." }),

    routes: new DataTable("routes", "Where services on other nodes are, and whether these places answered the last time.", [
      { title: "Service", head: true, show: (route) => (route.service === "*" ? "* (all others)" : route.service) },
      { title: "Over", show: (route) => route.transport || "auto" },
      { title: "Connections", show: (route) => count(route.connections), number: true },
      { title: "Endpoints", style: "wide", make: endpointsOf },
    ], { key: (route) => route.service, empty: "No route is configured: services are found on this node alone." }),

    certificates: new DataTable("certificates", "What this node proves itself with.", [
      { title: "Used", head: true, show: (certificate) => certificate.used_for },
      { title: "Proves", show: (certificate) => certificate.identity || "–", style: "wide" },
      { title: "File", show: (certificate) => certificate.file || "–", style: "wide" },
      { title: "Ends", show: (certificate) => (certificate.ends_unix_s ? onDate(certificate.ends_unix_s) : "unknown"), style: "name" },
      { title: "Left", make: timeLeftOf, style: "name" },
    ], { key: (certificate) => `${certificate.used_for} ${certificate.file}`, empty: "No [tls] is configured: nothing is proved to other nodes, and nothing is hidden on the way." }),
  };

  // Cells.

  function rateOfPath(path) {
    return state.pathRates.get(pathKey(path)) ?? 0;
  }

  function trendOf(method) {
    const points = state.trends.get(methodKey(method)) ?? [];
    return [points.join(), () => [trendLine(points)]];
  }

  // The figures beside it say how much; it says only how that went.
  function trendLine(points) {
    const top = Math.max(...points, 1);
    const at = (value, index) => `${(96 * index) / (TREND_POINTS - 1)},${19 - (17 * value) / top}`;
    const shifted = points.map((value, index) => at(value, index + TREND_POINTS - points.length));
    const line = drawn("polyline", { points: shifted.join(" ") });
    return drawn("svg", { class: "trend", viewBox: "0 0 96 20", "aria-hidden": "true" }, line);
  }

  function failuresOf(method) {
    if (method.error_rate === 0) return styled("soft", "0");
    return styled("bad", `▲ ${rate(method.error_rate)} (${percent(share(method.error_rate, method.rate))})`);
  }

  function chainOf(path) {
    const signature = JSON.stringify([path.engines, path.stays_because, path.packets]);
    return [signature, () => {
      const chain = element("ol", { class: "chain", "aria-label": `Engines of connection ${path.connection}, from the app to the wire` });
      for (const engine of path.engines) {
        const words = [engine.policy ? `${engine.policy} (${engine.kind} version ${engine.version})` : engine.kind];
        const waiting = engine.waiting_tx + engine.waiting_rx;
        if (waiting > 0) words.push(`${count(waiting)} waiting`);
        if (engine.held > 0) words.push(`${count(engine.held)} held`);
        if (engine.fault) words.push(`failed: ${engine.fault}`);
        const style = engine.fault ? "engine failed" : engine.policy ? "engine policy" : "engine";
        chain.append(element("li", null, element("span", { class: style }, words.join(", "))));
      }
      const notes = [chain];
      if (path.packets) {
        const { sent, resent, probes, received, duplicates, round_trip_us: trip } = path.packets;
        // Null where it was not measured; nodes of earlier versions say 0.
        const measured = trip ? `, round trip ${duration(trip)}` : "";
        notes.push(element("p", { class: "note" }, `${plural(sent, "packet")} sent (${count(resent)} again, ${plural(probes, "probe")}), ${count(received)} received (${count(duplicates)} twice)${measured}`));
      }
      if (path.stays_because) notes.push(element("p", { class: "note warn" }, `▲ stays with ${path.transport}: ${path.stays_because}`));
      return notes;
    }];
  }

  function scopeOf({ policy }) {
    const any = (pattern) => pattern === "" || pattern === "*";
    const parts = [];
    parts.push(any(policy.service) ? "every service" : policy.service);
    if (policy.methods.length > 0) parts.push(policy.methods.join(", "));
    if (!any(policy.app)) parts.push(`app ${policy.app}`);
    if (policy.side && policy.side !== "both") parts.push(`${policy.side} side`);
    return parts.join(" · ");
  }

  function judgedOf(attached) {
    const judged = attached.calls_judged;
    if (judged === null || judged === undefined) return styled("soft", "not counted");
    return judged === 0 ? styled("warn", "▲ none yet") : styled("", count(judged));
  }

  function stateOfChange(change) {
    const looks = {
      committed: ["good", "✓ committed"],
      "on probation": ["", "◷ on probation"],
      "rolled back": ["bad", "✕ rolled back"],
      refused: ["bad", "✕ refused"],
    };
    const [style, text] = looks[change.state] ?? ["", `◷ ${change.state}`];
    return styled(`${style} name`, text);
  }

  const statusOf = (status) => (status === "OK" ? styled("good", "✓ OK") : styled("bad", `✕ ${status}`));

  function indented(json) {
    try {
      return JSON.stringify(JSON.parse(json), null, 2);
    } catch {
      return json;
    }
  }

  function endpointsOf(route) {
    if (route.endpoints.length === 0) {
      return route.local_apps > 0 ? styled("good", "✓ bound on this node") : styled("warn", "▲ nobody has bound it on this node");
    }
    const told = route.endpoints.map((endpoint) => {
      if (endpoint.failed_in_a_row > 0) {
        return ["bad", `✕ ${endpoint.address} failed ${count(endpoint.failed_in_a_row)} ×, ${ago(endpoint.failed_at_unix_us)}: ${endpoint.problem}`];
      }
      if (endpoint.reached === 0) return ["soft", `${endpoint.address} not tried yet`];
      return ["good", `✓ ${endpoint.address} reached ${ago(endpoint.reached_at_unix_us)}`];
    });
    return [JSON.stringify(told), () => told.map(([style, text]) => element("div", { class: style }, text))];
  }

  function timeLeftOf(certificate) {
    if (!certificate.ends_unix_s) return styled("soft", "–");
    const left = certificate.ends_unix_s - Date.now() / 1000;
    if (left <= 0) return styled("bad", `✕ ended ${age(-left)} ago`);
    return left < 7 * 86400 ? styled("warn", `▲ ${age(left)}`) : styled("good", `✓ ${age(left)}`);
  }

  // The call graph.

  const NODE = { width: 252, height: 46, gap: 14, top: 26 };
  const COLUMN_X = [1, 354, 707];

  // Callers, services and servers, with the rates between them.
  function graphOf(paths) {
    const columns = [new Map(), new Map(), new Map()];
    const edges = new Map();
    const node = (column, name, detail) => {
      if (!columns[column].has(name)) columns[column].set(name, { name, details: new Set(), rate: 0, failed: 0 });
      const found = columns[column].get(name);
      if (detail) found.details.add(detail);
      return found;
    };
    const connect = (from, to, column, path, failed) => {
      const key = `${column}\u0000${from.name}\u0000${to.name}`;
      const edge = edges.get(key) ?? { from, to, column, rate: 0, failed: 0 };
      edge.rate += rateOfPath(path);
      edge.failed += failed;
      edges.set(key, edge);
    };
    for (const path of paths) {
      const isClient = path.side === "client";
      // Of a connection within this node the client's end says it all.
      if (path.transport === "local" && !isClient) continue;
      const isLocal = path.transport === "local";
      const here = "app of this node";
      const there = isLocal ? here : `over ${path.transport}`;
      const caller = node(0, isClient ? path.app : path.peer, isClient ? here : there);
      const service = node(1, path.service);
      const server = node(2, isClient ? path.peer : path.app, isClient ? there : here);
      const failed = rateOfPath(path) * failedShare(path);
      service.rate += rateOfPath(path);
      service.failed += failed;
      connect(caller, service, 0, path, failed);
      connect(service, server, 1, path, failed);
    }
    return { columns: columns.map((column) => [...column.values()]), edges: [...edges.values()] };
  }

  // Which part of the calls of such a path failed in the last interval.
  function failedShare(path) {
    const own = methodsOf(path);
    const failed = own.reduce((sum, method) => sum + method.error_rate, 0);
    return share(failed, own.reduce((sum, method) => sum + method.rate, 0));
  }

  function methodsOf(path) {
    const all = state.overview.traffic?.methods.rows ?? [];
    return all.filter((method) => method.app === path.app && method.service === path.service && (method.side === "" || method.side === path.side));
  }

  function shortened(text, characters) {
    if (text.length <= characters) return text;
    const tail = Math.floor(characters / 2);
    return `${text.slice(0, characters - tail - 1)}…${text.slice(-tail)}`;
  }

  function drawGraph(paths) {
    const { columns, edges } = graphOf(paths);
    const picture = byId("picture");
    const scroll = byId("picture-scroll");
    scroll.hidden = paths.length === 0;
    if (paths.length === 0) return;
    const tallest = Math.max(...columns.map((column) => Math.min(column.length, COLUMN_NODES_MAX + 1)));
    const step = NODE.height + NODE.gap;
    const height = NODE.top + tallest * step;
    const places = new Map();
    const parts = ["Callers", "Services", "Servers"].map((title, column) => drawn("text", { class: "head", x: COLUMN_X[column], y: 12 }, title));
    const boxes = columns.flatMap((nodes, column) => {
      const shown = nodes.slice(0, COLUMN_NODES_MAX);
      const rows = Math.min(nodes.length, COLUMN_NODES_MAX + 1);
      const offset = NODE.top + ((tallest - rows) * step) / 2;
      const made = shown.map((node, at) => {
        places.set(node, { x: COLUMN_X[column], y: offset + at * step });
        return boxOf(node, column, COLUMN_X[column], offset + at * step);
      });
      if (nodes.length > shown.length) {
        const text = `and ${nodes.length - shown.length} more, in the table below`;
        made.push(drawn("text", { class: "second", x: COLUMN_X[column], y: offset + shown.length * step + 20 }, text));
      }
      return made;
    });
    for (const edge of edges) {
      const [from, to] = [places.get(edge.from), places.get(edge.to)];
      if (from && to) parts.push(lineOf(edge, from, to));
    }
    const told = edges.filter((edge) => edge.column === 0).map((edge) => `${edge.from.name} calls ${edge.to.name}, ${rate(edge.rate)} a second`);
    picture.setAttribute("viewBox", `0 0 960 ${height}`);
    picture.setAttribute("aria-label", `Call graph. ${told.slice(0, 12).join("; ")}. The table below has all of it.`);
    picture.replaceChildren(...parts, ...boxes);
  }

  function boxOf(node, column, x, y) {
    const isService = column === 1;
    const second = isService
      ? `${rate(node.rate)} calls/s${node.failed > 0 ? `, ▲ ${percent(share(node.failed, node.rate))} fail` : ""}`
      : [...node.details].join(", ");
    const style = isService && node.failed > 0 ? "second failing" : "second";
    return drawn("g", {},
      drawn("title", {}, node.name),
      drawn("rect", { x, y, width: NODE.width, height: NODE.height, rx: 7, class: isService ? "service" : "" }),
      drawn("text", { class: "title", x: x + 12, y: y + 19 }, shortened(node.name, 32)),
      drawn("text", { class: style, x: x + 12, y: y + 36 }, shortened(second, 40)));
  }

  function lineOf(edge, from, to) {
    const [x1, y1] = [from.x + NODE.width, from.y + NODE.height / 2];
    const [x2, y2] = [to.x, to.y + NODE.height / 2];
    const middle = (x1 + x2) / 2;
    const width = Math.min(7, 1.2 + Math.log10(1 + edge.rate));
    return drawn("path", {
      d: `M${x1} ${y1} C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`,
      "stroke-width": width.toFixed(1),
      class: edge.failed > 0 ? "failing" : "",
    });
  }

  // What was read.

  // Calls that began on each path since the overview before. In the first one: what was counted of its methods, shared out.
  function measurePaths(overview) {
    const now = overview.status.uptime_s;
    const paths = overview.call_paths.rows;
    if (state.before && now <= state.before.at) return;
    const begun = new Map(paths.map((path) => [pathKey(path), path.calls_begun]));
    if (state.before) {
      const seconds = now - state.before.at;
      state.pathRates = new Map(paths.map((path) => {
        const earlier = state.before.begun.get(pathKey(path)) ?? 0;
        return [pathKey(path), Math.max(0, path.calls_begun - earlier) / seconds];
      }));
    } else {
      state.pathRates = new Map(paths.map((path) => {
        const alike = paths.filter((other) => other.app === path.app && other.side === path.side && other.service === path.service);
        const all = alike.reduce((sum, other) => sum + other.calls_begun, 0);
        const counted = methodsOf(path).reduce((sum, method) => sum + method.rate, 0);
        return [pathKey(path), counted * share(path.calls_begun, all)];
      }));
    }
    state.before = { at: now, begun };
  }

  function rememberTrends(overview) {
    const methods = overview.traffic?.methods.rows ?? [];
    const trends = new Map();
    for (const method of methods) {
      const earlier = state.trends.get(methodKey(method)) ?? [];
      trends.set(methodKey(method), [...earlier, method.rate].slice(-TREND_POINTS));
    }
    state.trends = trends;
  }

  const matching = (rows, texts) => rows.filter((row) => !state.filter || texts(row).join(" ").toLowerCase().includes(state.filter));

  function cut(listing, words, what) {
    const less = listing.total > listing.rows.length ? ` Only ${count(listing.rows.length)} of ${count(listing.total)} are shown; provost shows all.` : "";
    return words + less + (state.filter ? ` Filtered by “${state.filter}”${what}.` : "");
  }

  function draw() {
    const overview = state.overview;
    if (!overview) return;
    const { status } = overview;
    document.title = `${status.node} – Provost`;
    setText(byId("node-name"), status.node);
    const states = { serving: "✓ serving", draining: "▲ draining", being_replaced: "▲ being replaced" };
    setText(byId("node-facts"), [
      states[status.state] ?? status.state, `up ${age(status.service_uptime_s)}`, `version ${status.version}`,
      `process ${status.pid}`, `you may ${state.role}`,
    ].join("  ·  "));
    drawTiles(overview);
    drawAttention(overview);
    drawTables(overview);
  }

  function drawTiles({ status, traffic }) {
    const methods = traffic?.methods.rows ?? [];
    // A call within this node is counted at both of its ends; those that are served elsewhere, at the client's.
    const clients = methods.filter((method) => method.side !== "server");
    const own = clients.length > 0 ? clients : methods;
    const calls = own.reduce((sum, method) => sum + method.rate, 0);
    const failed = own.reduce((sum, method) => sum + method.error_rate, 0);
    const slowest = own.reduce((worst, method) => (method.latency_us_p99 > (worst?.latency_us_p99 ?? 0) ? method : worst), null);
    const busiest = Math.max(0, ...status.runtimes.map((runtime) => runtime.busy));
    const isCounted = (traffic?.counted_by.length ?? 0) > 0;
    const uncounted = "attach a policy of the kind metrics";
    const tiles = [
      ["Calls", isCounted ? rate(calls) : "–", "/s", isCounted ? (own === clients ? "begun by apps here" : "served by apps here") : uncounted],
      ["Failed", isCounted ? rate(failed) : "–", "/s", isCounted ? `${failed > 0 ? "▲ " : ""}${percent(share(failed, calls))} of the calls` : uncounted],
      ["Slowest p99", slowest ? duration(slowest.latency_us_p99) : "–", "", slowest ? `${slowest.service.split(".").pop()}/${slowest.method}` : "no call just now"],
      ["Under way", count(traffic?.calls_in_flight ?? status.calls_in_flight), "", "calls of all apps"],
      ["Connections", count(status.connections), "", `of ${plural(status.apps, "app")}`],
      ["Busiest runtime", percent(busiest), "", `of ${plural(status.runtimes.length, "runtime")}`],
    ];
    setContent(byId("tiles"), JSON.stringify(tiles), () => tiles.map(([title, figure, unit, detail]) =>
      element("div", null,
        element("dt", null, title),
        element("dd", { class: "figure" }, figure, element("span", { class: "unit" }, unit)),
        element("dd", { class: "detail" }, detail))));
  }

  function drawAttention({ status, certificates }) {
    const warnings = [...new Set([...status.warnings, ...certificates.warnings])];
    if (status.config_error) warnings.unshift(`The configuration was not taken when it was last read: ${status.config_error}`);
    byId("attention").hidden = warnings.length === 0;
    setList(byId("attention-list"), warnings);
    const unmatched = status.never_matched;
    byId("unmatched").hidden = unmatched.length === 0;
    setText(byId("unmatched-summary"), `${plural(unmatched.length, "policy has", "policies have")} judged no call yet`);
    setList(byId("unmatched-list"), unmatched);
  }

  function drawTables(overview) {
    const { traffic, call_paths: paths, datapaths, apps, routes } = overview;
    const shownPaths = matching(paths.rows, (path) => [path.app, path.service, path.peer, path.transport]);
    drawGraph(shownPaths);
    tables.paths.say(cut(paths, "Connections of the same two, of the same service, are one row.", ""));
    tables.paths.draw(shownPaths);

    const methods = traffic?.methods ?? { total: 0, rows: [] };
    const counted = traffic && traffic.counted_by.length > 0
      ? `Of the last ${traffic.interval_s.toFixed(0)} s, counted by ${traffic.counted_by.join(", ")}.`
      : "Nobody counts calls: attach a policy of the kind metrics (provost policy attach --kind metrics).";
    const called = methods.rows.filter((method) => method.calls + method.in_flight > 0);
    const uncalled = methods.rows.length - called.length;
    const leftOut = uncalled > 0 ? ` ${plural(uncalled, "method", "methods")} without a call so far ${uncalled === 1 ? "is" : "are"} left out.` : "";
    tables.traffic.say(cut(methods, counted + leftOut, ""));
    tables.traffic.draw(matching(called, (method) => [method.app, method.service, method.method, method.side]));

    tables.datapaths.say(cut(datapaths, "Each connection of an app, with its engines from the app to the wire.", ""));
    tables.datapaths.draw(matching(datapaths.rows, (path) => [path.app, path.service, path.peer, path.peer_identity, path.transport]));
    tables.policies.draw(matching(overview.policies, ({ policy }) => [policy.name, policy.kind, policy.service, policy.app]));
    tables.engines.draw(matching(overview.engines, (engine) => [engine.kind, engine.summary]));
    tables.changes.draw(matching(overview.changes, (change) => [change.summary, change.state, change.problem]));
    tables.apps.say(cut(apps, "The programs that are attached.", ""));
    tables.apps.draw(matching(apps.rows, (app) => [app.name, ...app.serves]));
    tables.routes.draw(matching(routes.rows, (route) => [route.service, ...route.endpoints.map((endpoint) => endpoint.address)]));
    tables.certificates.draw(certificatesOf(overview.certificates));

    setText(byId("taps-note"), state.tapsNote);
    byId("taps-scroll").hidden = !state.showsTaps;
    if (state.showsTaps) tables.taps.draw(matching(state.samples, (sample) => [sample.app, sample.method, sample.peer, sample.status]));

    const counts = {
      traffic: methods.total - uncalled, datapaths: datapaths.total, policies: overview.policies.length, engines: overview.engines.length,
      changes: overview.changes.length, taps: state.samples.length, apps: apps.total, routes: routes.total,
    };
    for (const [id, number] of Object.entries(counts)) setText(byId(`${id}-count`), count(number));
  }

  function certificatesOf(certificates) {
    const own = { used_for: "between nodes", identity: certificates.identity, file: certificates.certificate_file, ends_unix_s: certificates.ends_unix_s };
    return [...(certificates.enabled ? [own] : []), ...(certificates.others ?? [])];
  }

  // What is said aloud.

  function announce(text) {
    byId("announcement").textContent = text;
  }

  // Only what somebody would want to be interrupted for, and not at each refresh.
  function announceNews(overview) {
    const { status, changes } = overview;
    const now = { state: status.state, warnings: status.warnings.length, changes: changes.map((change) => `${change.summary}: ${change.state}`) };
    const before = state.known;
    state.known = now;
    if (!before) return;
    const news = [];
    if (now.state !== before.state) news.push(`The node is ${now.state.replace("_", " ")}.`);
    if (now.warnings > before.warnings) news.push(`${plural(now.warnings, "thing needs", "things need")} attention.`);
    const fresh = now.changes.filter((change) => !before.changes.includes(change));
    if (fresh.length > 0) news.push(`Live change: ${fresh[0]}${fresh.length > 1 ? `, and ${fresh.length - 1} more` : ""}.`);
    if (news.length > 0) announce(news.join(" "));
  }

  function showProblem(text) {
    const problem = byId("problem");
    setText(problem, text);
    problem.hidden = text === "";
  }

  // Reading.

  class Unauthorized extends Error {}

  async function read(path) {
    const headers = state.token ? { Authorization: `Bearer ${state.token}` } : {};
    const answer = await fetch(path, { headers, cache: "no-store", credentials: "omit" });
    const told = await answer.json();
    if (answer.status === 401) throw new Unauthorized(told.error);
    if (!answer.ok) throw new Error(told.error);
    return told;
  }

  async function readTaps() {
    if (!state.showsTaps) {
      state.samples = [];
      state.tapsNote = `What is in calls is shown to those who have the role operate; you have ${state.role}.`;
      return;
    }
    try {
      const { samples } = await read("/api/taps");
      state.samples = samples.sort((one, other) => other.at_unix_us - one.at_unix_us);
      state.tapsNote = "";
    } catch (error) {
      state.samples = [];
      state.tapsNote = `${error.message} (provost policy attach --kind tap)`;
    }
  }

  async function refresh() {
    clearTimeout(state.timer);
    try {
      const { role, shows_taps: showsTaps, overview } = await read("/api/overview");
      Object.assign(state, { role, showsTaps, overview });
      await readTaps();
      measurePaths(overview);
      rememberTrends(overview);
      byId("access").hidden = true;
      byId("content").hidden = false;
      showProblem("");
      draw();
      announceNews(overview);
      setText(byId("updated"), `As of ${new Date().toLocaleTimeString("en-GB")}`);
    } catch (error) {
      if (error instanceof Unauthorized) {
        askForToken(error.message);
        return;
      }
      const seen = state.overview ? " What is below is as it was seen last." : "";
      const reason = error instanceof TypeError ? "The node does not answer." : `The node says: ${error.message}.`;
      showProblem(`✕ ${reason}${seen}`);
    }
    schedule();
  }

  function schedule() {
    clearTimeout(state.timer);
    if (!state.paused && !document.hidden) state.timer = setTimeout(refresh, REFRESH_MS);
  }

  function askForToken(reason) {
    setText(byId("access-reason"), `Not shown: ${reason}.`);
    const isNew = byId("access").hidden;
    byId("access").hidden = false;
    byId("content").hidden = true;
    setText(byId("node-facts"), "");
    if (isNew || document.activeElement === document.body) byId("token").focus();
  }

  function takeToken(token) {
    state.token = token.trim();
    sessionStorage.setItem(TOKEN_KEY, state.token);
  }

  // Controls.

  byId("access-form").addEventListener("submit", (event) => {
    event.preventDefault();
    takeToken(byId("token").value);
    byId("token").value = "";
    refresh();
  });

  byId("pause").addEventListener("click", () => {
    state.paused = !state.paused;
    byId("pause").setAttribute("aria-pressed", String(state.paused));
    announce(state.paused ? "Paused: what is shown stays as it is." : "Going on.");
    if (state.paused) clearTimeout(state.timer);
    else refresh();
  });

  byId("filter").addEventListener("input", () => {
    state.filter = byId("filter").value.trim().toLowerCase();
    draw();
    const methods = tables.traffic.last?.length ?? 0;
    announce(state.filter ? `${plural(methods, "method matches", "methods match")}.` : "All is shown.");
  });

  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && !state.paused) refresh();
  });

  const inAddress = new URLSearchParams(location.hash.slice(1)).get("token");
  if (inAddress) {
    takeToken(inAddress);
    history.replaceState(null, "", location.pathname);
  }
  refresh();
})();
