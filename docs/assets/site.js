// Formulas: arithmatex has marked them with \( \) and \[ \].
document.addEventListener("DOMContentLoaded", () =>
  document.querySelectorAll(".arithmatex").forEach((part) =>
    renderMathInElement(part, {
      delimiters: [
        { left: "\\(", right: "\\)", display: false },
        { left: "\\[", right: "\\]", display: true },
      ],
      throwOnError: true,
    })
  )
);
