// Python in a worker, so that an endless loop stops with it.
"use strict";
let ready = null;

const start = async ({ pyodide, bundle }) => {
  importScripts(new URL("pyodide.js", pyodide).href);
  const python = await loadPyodide({ indexURL: pyodide });
  await python.loadPackage("numpy", { messageCallback: () => {} });
  const answer = await fetch(bundle);
  if (!answer.ok) throw new Error(`${bundle}: ${answer.status}`);
  python.unpackArchive(await answer.arrayBuffer(), "zip", { extractDir: "/lab" });
  python.runPython("import os, sys; os.chdir('/lab'); sys.path.insert(0, '/lab'); import try_it");
  return python;
};

onmessage = async ({ data }) => {
  const { exercise } = data;
  try {
    ready ??= start(data);
    const python = await ready;
    postMessage({ exercise, ready: true });
    if (!data.answers) return;
    python.globals.set("answers", JSON.stringify(data.answers));
    python.globals.set("exercise", exercise);
    const result = python.runPython("import json; json.dumps(try_it.check(json.loads(answers), exercise))");
    const [passed, printed] = JSON.parse(result);
    postMessage({ exercise, passed, printed });
  } catch (error) {
    postMessage({ exercise, failed: String(error.message ?? error).trim().split("\n").pop() });
  }
};
