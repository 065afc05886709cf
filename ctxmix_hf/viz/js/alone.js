/* For a ledger or a similarity that stands in a notebook or a file, without the widget. */
import { marked } from "./marks.js";

marked();
