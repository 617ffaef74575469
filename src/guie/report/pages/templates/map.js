// The map: show the point nearest to the pointer; a click keeps it and highlights its class.
const atlas = document.querySelector("svg.points");
if (atlas) {
  const REACH_PX = 40;
  const parsed = (id) => JSON.parse(document.getElementById(id).textContent);
  const points = parsed("map-points"), pictures = parsed("map-pictures"); // null without images
  const circles = [...atlas.querySelectorAll("circle")];
  const card = document.querySelector(".atlas .found"), hint = document.querySelector(".atlas .hint");
  const part = (name) => card.querySelector(name);
  const shown = (i) => !circles[i].classList.contains("off");
  let at = -1, kept = false;

  const picture = (name, path, label) => {
    const { uri, fault } = pictures[path];
    const element = document.createElement(fault ? "span" : "img");
    element.className = `thumb ${name} ${fault ? "missing" : ""}`;
    element.title = path;
    element.setAttribute("aria-label", fault ? `${label}: cannot be shown` : label);
    if (fault) element.textContent = fault;
    else element.src = uri;
    return element;
  };
  const show = (i) => {
    circles[at]?.classList.remove("at");
    at = i;
    circles[i].classList.add("at");
    circles[i].parentNode.append(circles[i]); // above the others
    const point = points[i];
    part(".label").textContent = point.label;
    part(".path").textContent = point.path;
    part(".verdict").textContent =
      `${point.right ? "✓" : "✗"} first answer ${point.answer}, distance ${point.distance.toFixed(3)}`;
    part(".verdict").classList.toggle("wrong", !point.right);
    if (pictures) {
      const { path, label, answer_path, answer } = point;
      part(".two").replaceChildren(picture("query", path, label), picture("answer", answer_path, answer));
    }
    card.hidden = false;
    hint.hidden = true;
  };
  const keep = (i) => {
    kept = i >= 0;
    circles.forEach((circle, n) => circle.classList.toggle("same", kept && points[n].label === points[i].label));
    if (kept) show(i);
  };
  const nearest = (event) => {
    const to = atlas.getScreenCTM(); // from the map's units to the screen's
    let best = -1, least = REACH_PX;
    points.forEach((point, i) => {
      const away = Math.hypot(to.a * point.x + to.e - event.clientX, to.d * point.y + to.f - event.clientY);
      if (away < least && shown(i)) [best, least] = [i, away];
    });
    return best;
  };
  // The nearest within a quarter turn of the arrow.
  const inDirection = (dx, dy) => {
    const from = points[at] ?? { x: 500, y: 500 };
    let best = at, least = Infinity;
    points.forEach((point, i) => {
      const x = point.x - from.x, y = point.y - from.y, along = x * dx + y * dy;
      const away = Math.hypot(x, y);
      if (i !== at && shown(i) && along > 0.7 * away && away < least) [best, least] = [i, away];
    });
    return best;
  };
  const ARROWS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };

  atlas.addEventListener("pointermove", (event) => {
    const i = nearest(event);
    if (i >= 0 && !kept) show(i);
  });
  atlas.addEventListener("click", (event) => keep(nearest(event)));
  atlas.addEventListener("keydown", (event) => {
    if (event.key in ARROWS) {
      const i = inDirection(...ARROWS[event.key]);
      if (i >= 0) show(i);
      event.preventDefault();
    } else if (event.key === "Enter" && at >= 0) keep(at);
    else if (event.key === "Escape") keep(-1);
  });

  const buttons = [...document.querySelectorAll(".legend button")];
  const wrongOnly = document.getElementById("wrong-only");
  const filter = () => {
    const off = new Set(buttons.filter((b) => b.ariaPressed === "false").map((b) => b.dataset.domain));
    points.forEach((point, i) =>
      circles[i].classList.toggle("off", off.has(point.domain) || (wrongOnly.checked && point.right)));
  };
  for (const button of buttons) {
    button.addEventListener("click", () => {
      button.ariaPressed = String(button.ariaPressed === "false");
      filter();
    });
  }
  wrongOnly.addEventListener("change", filter);
}
