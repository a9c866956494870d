// The theme button, the Copy buttons and the current entry of the contents. A page works without them.
const root = document.documentElement;
const asked = new URLSearchParams(location.search).get("theme");
if (asked === "light" || asked === "dark") root.dataset.theme = asked;

const isDark = () => (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
document.querySelector("[data-theme-switch]").addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; });

const status = document.querySelector("[role=status]");
for (const button of document.querySelectorAll("[data-copy]")) {
  button.addEventListener("click", async () => {
    const command = button.parentElement.querySelector("pre");
    try {
      await navigator.clipboard.writeText(command.textContent);
      button.textContent = "Copied";
      status.textContent = "Command copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1600);
    } catch {  // not allowed for this page: select the text, so that Ctrl-C copies it
      getSelection().selectAllChildren(command);
      status.textContent = "Command selected";
    }
  });
}

const links = new Map([...document.querySelectorAll(".body > nav a")].map((link) => [link.hash.slice(1), link]));
const observer = new IntersectionObserver((entries) => {
  for (const entry of entries.filter((each) => each.isIntersecting)) {
    links.forEach((link) => link.removeAttribute("aria-current"));
    links.get(entry.target.id).setAttribute("aria-current", "true");
  }
}, { rootMargin: "-10% 0px -75% 0px" });
for (const id of links.keys()) observer.observe(document.getElementById(id));
