// The JSON API, as any other client uses it. A lapsed login leads to the login page.

const page = document.getElementById("main").dataset;

export class ApiError extends Error {
  constructor(status, error) {
    // The "[Class.method] " in front is for logs.
    super(error.message?.replace(/^\[[^\]]*\] /, "") ?? `the server answered ${status}`);
    this.status = status;
    this.detail = error;
  }
}

async function call(path, options) {
  const response = await fetch(page.api + path, { credentials: "same-origin", ...options });
  if (response.status === 401) {
    location.assign(page.login);
    throw new ApiError(401, { message: "logged out" });
  }
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new ApiError(response.status, body.error ?? {});
  return body;
}

export const read = (path) => call(path, {});

export const change = (path, body) =>
  call(path, {
    method: "PUT",
    headers: { "Content-Type": "application/json", "X-CSRF-Token": page.csrf },
    body: JSON.stringify(body),
  });
