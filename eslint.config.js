// The front end has no build step: these are checks only (`npm run lint`, tests/viz/test_scripts.py).
import js from "@eslint/js";
import globals from "globals";

export default [
  { ignores: ["**/*", "!ctxmix_hf/**", "!tests/**", "!eslint.config.js"] },
  {
    files: ["ctxmix_hf/**/*.js"],
    ...js.configs.recommended,
    languageOptions: { globals: globals.browser },
    rules: {
      ...js.configs.recommended.rules,
      eqeqeq: "error",
      "no-var": "error",
      "prefer-const": "error",
    },
  },
  {
    files: ["tests/js/**/*.mjs"],
    ...js.configs.recommended,
    languageOptions: { globals: globals.node },
  },
];
