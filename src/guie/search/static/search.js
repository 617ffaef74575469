"use strict";

// One query at a time: {token} of a picture that was sent, or {row} of one of the index.
const at = (id) => document.getElementById(id);
const state = { picture: null, box: null, query: null, asked: 0 };

function say(words, fault = false) {
  at("said").textContent = words;
  at("said").classList.toggle("fault", fault);
}

async function answer(response) {
  const type = response.headers.get("content-type") || "";
  const body = type.includes("json") ? await response.json() : { error: await response.text() };
  if (!response.ok) throw new Error(body.error);
  return body;
}

// Only the last question's answer is shown, whichever comes last
async function ask(question) {
  const number = ++state.asked;
  say("Searching…");
  try {
    const body = await question();
    if (number !== state.asked) return;
    if (body.token) state.query = { token: body.token };
    show(body);
  } catch (error) {
    if (number !== state.asked) return;
    at("hits").replaceChildren();
    say(error.message || "The server does not answer.", true);
  }
}

function wanted() {
  return new URLSearchParams({ k: at("k").value, domain: at("domain").value.trim() });
}

function send() {
  if (!state.picture) return;
  ask(async () => {
    const form = new FormData();
    form.append("picture", state.picture);
    if (state.box) form.append("box", state.box.join(","));
    return answer(await fetch("/search?" + wanted(), { method: "POST", body: form }));
  });
}

function sendText(event) {
  event.preventDefault();
  const words = at("text").value.trim();
  if (!words) return;
  state.picture = null;
  clearBox();
  stopCamera();
  at("stage").hidden = true;
  at("hint").hidden = false;
  ask(async () => {
    const form = new FormData();
    form.append("text", words);
    return answer(await fetch("/text?" + wanted(), { method: "POST", body: form }));
  });
}

function again() {
  if (!state.query) return;
  const words = wanted();
  for (const [key, value] of Object.entries(state.query)) words.set(key, value);
  ask(async () => answer(await fetch("/neighbours?" + words)));
}

function show({ hits, seconds }) {
  at("hits").replaceChildren(...hits.map(card));
  const found = hits.length === 1 ? "1 image" : `${hits.length} images`;
  say(hits.length ? `${found} in ${(1000 * seconds).toFixed(0)} ms. Click one to search with it.` : "Nothing found.");
}

function card(hit) {
  const item = document.createElement("li");
  const button = document.createElement("button");
  const seen = document.createElement("span");
  const frame = document.createElement("span");
  const image = document.createElement("img");
  const name = document.createElement("span");
  const path = document.createElement("span");
  button.type = "button";
  button.className = "hit";
  image.src = `/picture/${hit.row}`;
  image.alt = hit.image_path;
  image.loading = "lazy";
  name.className = "name";
  name.textContent = `${hit.distance.toFixed(3)} ${hit.label || hit.domain}`;
  path.className = "path";
  path.textContent = hit.image_path;
  seen.className = "seen";
  frame.append(image);
  seen.append(frame);
  if (hit.region) frame.append(part(hit.region));
  button.append(seen, name);
  if (hit.sure !== null) {
    const meter = document.createElement("meter");
    meter.value = hit.sure;
    meter.title = `${Math.round(100 * hit.sure)} %`;
    button.append(meter);
  }
  button.append(path);
  button.addEventListener("click", () => searchOn(hit));
  item.append(button);
  return item;
}

// The part of an image that is nearest to the query, in shares of its sides
function part([left, top, right, bottom]) {
  const box = document.createElement("span");
  box.className = "part";
  Object.assign(box.style, {
    left: `${100 * left}%`, top: `${100 * top}%`, width: `${100 * (right - left)}%`, height: `${100 * (bottom - top)}%`,
  });
  return box;
}

function searchOn(hit) {
  state.picture = null;
  state.query = { row: hit.row };
  view(`/picture/${hit.row}?side=1024`, false);
  again();
}

function take(file) {
  if (!file) return;
  if (!file.type.startsWith("image/")) {
    say(`${file.name || "The file"} is not an image.`, true);
    return;
  }
  state.picture = file;
  view(URL.createObjectURL(file), true);
  send();
}

function view(address, own) {
  stopCamera();
  const old = at("shown").src;
  if (old.startsWith("blob:")) URL.revokeObjectURL(old);
  at("shown").src = address;
  at("shown").dataset.own = own ? "yes" : "";
  at("hint").hidden = true;
  at("stage").hidden = false;
  clearBox();
}

function clearBox() {
  state.box = null;
  at("box").hidden = at("whole").hidden = true;
}

// A box, in pixels of the picture itself
let start = null;
function place(event) {
  const frame = at("shown").getBoundingClientRect();
  const within = (value, size) => Math.min(Math.max(value, 0), size);
  return [within(event.clientX - frame.left, frame.width), within(event.clientY - frame.top, frame.height)];
}
function corners(from, to) {
  return [Math.min(from[0], to[0]), Math.min(from[1], to[1]), Math.max(from[0], to[0]), Math.max(from[1], to[1])];
}
function drawBox([left, top, right, bottom]) {
  Object.assign(at("box").style, {
    left: `${left}px`, top: `${top}px`, width: `${right - left}px`, height: `${bottom - top}px`,
  });
  at("box").hidden = false;
}
at("stage").addEventListener("pointerdown", (event) => {
  if (!at("shown").dataset.own) return;
  start = place(event);
  at("stage").setPointerCapture(event.pointerId);
  event.preventDefault();
});
at("stage").addEventListener("pointermove", (event) => {
  if (start) drawBox(corners(start, place(event)));
});
at("stage").addEventListener("pointerup", (event) => {
  if (!start) return;
  const drawn = corners(start, place(event));
  start = null;
  const frame = at("shown").getBoundingClientRect();
  const scale = at("shown").naturalWidth / frame.width;
  const box = drawn.map((value) => Math.round(value * scale));
  if (box[2] - box[0] < 8 || box[3] - box[1] < 8) {
    clearBox();
  } else {
    state.box = [box[0], box[1], Math.min(box[2], at("shown").naturalWidth), Math.min(box[3], at("shown").naturalHeight)];
    at("whole").hidden = false;
  }
  send();
});
at("whole").addEventListener("click", () => { clearBox(); send(); });

// Ways in: drop, paste, choose, camera
for (const kind of ["dragenter", "dragover"]) {
  document.addEventListener(kind, (event) => { event.preventDefault(); at("drop").classList.add("over"); });
}
for (const kind of ["dragleave", "drop"]) {
  document.addEventListener(kind, (event) => { event.preventDefault(); at("drop").classList.remove("over"); });
}
document.addEventListener("drop", (event) => take(event.dataTransfer.files[0]));
document.addEventListener("paste", (event) => take([...event.clipboardData.files][0]));
at("choose").addEventListener("click", () => at("file").click());
at("file").addEventListener("change", () => take(at("file").files[0]));

function stopCamera() {
  const stream = at("video").srcObject;
  if (stream) stream.getTracks().forEach((track) => track.stop());
  at("video").srcObject = null;
  at("video").hidden = at("shoot").hidden = true;
}
at("camera").addEventListener("click", async () => {
  try {
    const stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    at("hint").hidden = at("stage").hidden = true;
    at("video").srcObject = stream;
    at("video").hidden = at("shoot").hidden = false;
    await at("video").play();
  } catch (error) {
    say("No camera, or no permission to use it.", true);
  }
});
at("shoot").addEventListener("click", () => {
  const canvas = document.createElement("canvas");
  canvas.width = at("video").videoWidth;
  canvas.height = at("video").videoHeight;
  canvas.getContext("2d").drawImage(at("video"), 0, 0);
  canvas.toBlob(take, "image/jpeg", 0.92);
});

let waiting = null;
at("domain").addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(again, 120);
});
at("k").addEventListener("change", again);
at("texts").addEventListener("submit", sendText);

fetch("/about").then(answer).then((about) => {
  at("about").textContent = `${about.pictures.toLocaleString()} images of ${about.source}, by ${about.model}`;
  at("sure").textContent = `Confidence (bars): ${about.sure}.`;
  at("domains").replaceChildren(...about.domains.map((name) => Object.assign(document.createElement("option"), { value: name })));
  at("domain").hidden = !about.domains.length;
  at("texts").hidden = !about.texts;
});
