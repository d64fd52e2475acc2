// Shows the OpenAPI document of this service. Nothing is loaded from other addresses.

// Swagger UI puts a link into each operation's button. Keyboards and screen readers need one of them.
const Plain = {
  wrapComponents: { DeepLink: () => ({ text }) => text },
};

// What Swagger UI leaves out and assistive technology needs.
const MISSING = [
  ["textarea.body-param__text", "aria-label", "Request body"],
  ["select.examples-select-element", "aria-label", "Example"],
  ["pre.microlight", "tabindex", "0"], // so that keys can scroll it
  [".information-container", "role", "banner"],
  // Swagger UI has no h2 between its h1 and h3.
  ["h3, section.models > h4", "aria-level", "2"],
  ["h4", "aria-level", "3"],
  ["h5", "aria-level", "4"],
];

function complete() {
  for (const [selector, attribute, value] of MISSING) {
    for (const element of document.querySelectorAll(`:is(${selector}):not([${attribute}])`)) {
      element.setAttribute(attribute, value);
    }
  }
}

new MutationObserver(complete).observe(document.getElementById("docs"), {
  childList: true,
  subtree: true,
});
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#docs",
  deepLinking: true,
  displayRequestDuration: true,
  validatorUrl: null, // the default is a service on the internet
  syntaxHighlight: { theme: "tomorrow-night" }, // the default's numbers are too dark to read
  plugins: [Plain],
});
