// The service worker of a published page: what has been loaded once is kept, and the page then needs no connection.
// sw.js sets SITE: the version, which changes when any file of the site does, and the files to load beforehand.
// A new version is taken over when no tab shows the old one, so that a page never mixes files of both.

const NAME = `torchcaps-${self.registration.scope}-${self.SITE.version}`;

// A file that the browser kept from an earlier version of the site must not get into this one.
const FRESH = { cache: "no-cache" };

self.addEventListener("install", (event) => {
  event.waitUntil(caches.open(NAME).then((cache) => cache.addAll(self.SITE.files.map((file) => new Request(file, FRESH)))));
});

self.addEventListener("activate", (event) => {
  event.waitUntil(removeOthers().then(() => self.clients.claim()));
});

self.addEventListener("fetch", (event) => {
  if (event.request.method === "GET" && event.request.url.startsWith(self.registration.scope)) event.respondWith(answer(event.request));
});

async function answer(request) {
  const cache = await caches.open(NAME);
  const kept = await cache.match(request, { ignoreSearch: true });
  if (kept) return kept;
  const fetched = await fetch(request.url, FRESH);
  if (fetched.status === 200) await cache.put(request, fetched.clone());
  return fetched;
}

async function removeOthers() {
  const ours = (await caches.keys()).filter((name) => name.startsWith(`torchcaps-${self.registration.scope}-`) && name !== NAME);
  await Promise.all(ours.map((name) => caches.delete(name)));
}
