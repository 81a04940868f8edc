-- Who signed a request stands beside its body: a table of its own cost a second search for each request.
ALTER TABLE requests ADD COLUMN signature text;
UPDATE requests SET signature = request_signatures.signature
FROM request_signatures WHERE request_signatures.run_id = requests.run_id;
DROP TABLE request_signatures;
