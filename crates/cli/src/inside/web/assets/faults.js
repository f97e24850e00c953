// Switches the faults of devices, where the server allows it (`feroce web --control`).

const PRESETS = ["off", "loss=1%", "delay=1ms", "rate=100Mbit", "corrupt=0.1%"];

const byId = (id) => document.getElementById(id);
const forms = new Map();

function say(text, isBad) {
  byId("faults-said").textContent = text;
  byId("faults-said").className = isBad ? "bad" : "";
}

async function change(device, fault) {
  const { pid, device: name } = device;
  try {
    const query = new URLSearchParams({ pid, device: name, fault }).toString().replaceAll("+", "%20");
    const answer = await fetch(`fault?${query}`, { method: "POST" });
    if (!answer.ok) throw new Error(await answer.text());
    say(`${name} of process ${pid}: ${(await answer.json()).fault}`, false);
  } catch (error) {
    say(error.message, true);
  }
}

function make(parent, kind, text) {
  const made = document.createElement(kind);
  made.textContent = text;
  parent.append(made);
  return made;
}

function formOf(device) {
  const form = document.createElement("form");
  const label = make(form, "label", `${device.pid} ${device.program}, ${device.device}`);
  if (device.fault === null) {
    make(form, "span", "has no layer for faults: start the program with FEROCE_FAULT=off")
      .className = "none";
    return form;
  }
  const input = make(label, "input", "");
  form.append(input);
  input.value = device.fault;
  input.setAttribute("aria-label", "Faults");
  make(form, "button", "Switch").type = "submit";
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    change(device, input.value);
  });
  for (const fault of PRESETS) {
    const button = make(form, "button", fault);
    button.type = "button";
    button.addEventListener("click", () => {
      input.value = fault;
      change(device, fault);
    });
  }
  return form;
}

// A form for each device. One that exists stays, so that what is being written is not lost.
export function showFaults(devices, isAllowed) {
  byId("faults-panel").hidden = !isAllowed;
  if (!isAllowed) return;
  const keys = new Set();
  for (const device of devices) {
    const key = `${device.pid} ${device.device}`;
    keys.add(key);
    if (!forms.has(key)) {
      forms.set(key, formOf(device));
      byId("faults").append(forms.get(key));
    }
  }
  for (const [key, form] of forms) {
    if (!keys.has(key)) {
      form.remove();
      forms.delete(key);
    }
  }
}
