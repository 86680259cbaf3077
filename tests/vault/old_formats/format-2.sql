BEGIN TRANSACTION;
CREATE TABLE id_styles (records INTEGER, styles INTEGER, shortest INTEGER, longest INTEGER);
INSERT INTO "id_styles" VALUES(32,30,3,4);
CREATE TABLE ledger (sequence INTEGER PRIMARY KEY, hash TEXT NOT NULL, body TEXT NOT NULL);
INSERT INTO "ledger" VALUES(1,'31a10c154c01b27fa47650b121c8f7a73f68b595b907acb4312b1f1e97d9bd96','{"details":{"classes":2,"format":1},"kind":"created","nonce":"364318d6808b5e00fb0b0c931de7d29a","previous":"0000000000000000000000000000000000000000000000000000000000000000","sequence":1,"time":"2026-11-16T06:03:27.524Z"}');
INSERT INTO "ledger" VALUES(2,'d6561682ff018b26c9cb1b0abeb6240e2839f1c15ceb9c34213ece7ecd082b51','{"details":{"ids_digest":"85f85e191400dc20c4ca1a0f3fcd8e8320cc2e7616971a02ce972f9f73c9b677","labels_changed":0,"labels_changed_after_release":0,"records":31,"units_digest":"ee7959c4639550e477a3f05e859492cb59b0372f8cca1f9aac48f06c87d769e8"},"kind":"added","nonce":"c2f0f66dbebedf97ff3ff56a9444480d","previous":"31a10c154c01b27fa47650b121c8f7a73f68b595b907acb4312b1f1e97d9bd96","sequence":2,"time":"2026-11-16T06:03:27.525Z"}');
INSERT INTO "ledger" VALUES(3,'c96acfdfb1ce4473e36a9a94f7b9440b82b2014811ddb97d284983bf771b9c95','{"details":{"delta":0.0,"description":"laplace (\u03b5 = 1)","draws":1,"epsilon":1.0,"ids_digest":"6659994832554c7324896a2dfdf86c8f4e4e0d319b9b1cd7086f65e3aa557460","mechanism":{"classes":2,"epsilon":1.0,"mechanism":"laplace"},"noise":"secure","outcomes_digest":"5d128cc92dabb29fa6d79974f0309790fe7e09c3c80997edb9d443204d1cccb4","records":20,"seed":null,"table_digest":"ecc12675cc1c317dfc707180ac614374576a77d3fa6174c7b016b8c61e28aa88"},"kind":"released","nonce":"b24e6ba387516b30717c97cc5e5eccd1","previous":"d6561682ff018b26c9cb1b0abeb6240e2839f1c15ceb9c34213ece7ecd082b51","sequence":3,"time":"2026-11-16T06:03:27.611Z"}');
INSERT INTO "ledger" VALUES(4,'29b871636208b956b9ccafd5a14cbb597a2a9e9865e74e755c2c21885002eb73','{"details":{"ids_digest":"9a3e85ee1f0671971d67ad81699ca2a5253b0472451cb8877c21c40ec419843b","labels_changed":1,"labels_changed_after_release":1,"records":1,"units_digest":"6133f2d2dc6cad8dbbfc80f0fb587d3e61469954c82d906cce85239e4c6c8bbd"},"kind":"added","nonce":"e32ed15180938dc94c49f275292c65da","previous":"c96acfdfb1ce4473e36a9a94f7b9440b82b2014811ddb97d284983bf771b9c95","sequence":4,"time":"2026-11-16T06:03:27.641Z"}');
INSERT INTO "ledger" VALUES(5,'5eeae70c6d8a4bc4254535d5e3a653798a92ae3d8e3d24035db02bacea37bc04','{"details":{"delta":0.0,"description":"discrete (\u03b5 = 0.5)","draws":2,"epsilon":1.0,"ids_digest":"84246ba616bd3e72a55eae3ddb399601685fb054f4288758a274ddf240fab379","mechanism":{"classes":2,"epsilon":0.5,"mechanism":"discrete"},"noise":"secure","outcomes_digest":"a0454a24dd4bc418448ca19320519ea3fe544fa1a910868b62ca210614f119f8","records":2,"seed":null,"table_digest":"b0c16fbdef83ed1fba8b3ac3617fd8cbf4ef0614373d6b4730c8fcb370b38284"},"kind":"released","nonce":"73d1021f6067362b6fb341ae4ef6a7eb","previous":"29b871636208b956b9ccafd5a14cbb597a2a9e9865e74e755c2c21885002eb73","sequence":5,"time":"2026-11-16T06:03:27.661Z"}');
INSERT INTO "ledger" VALUES(6,'3d95aa1a6d1d07c0cf7b241a73ff27b2529a62c61278bbc7724fce323bbd99da','{"details":{"bound":100,"classes":2,"delta":0.0,"description":"statistic of 3 numbers, discrete Laplace noise, scale 400 (\u03b5 = 0.25)","epsilon":0.25,"ids_digest":"48da3e0cbda6f86e82d542e56412452c081ef08f588b1e1b8373f7469636594e","mechanism":{"noise":"laplace","scale":400},"noise":"secure","noise_digest":"a2a2e0f5807f123feede02c021aac4bf5943ebf70e75ffe3114d335826aa7a98","phi_digest":"2c940e262c679a9ca86d7849d54d623a1f22bbb846bc1b4804b50a9274005e54","records":10,"releases":1,"rho":null,"seed":null,"values_digest":"ae83f41601d84e099c959991980e64012f39fcbc2a84b6e3e29a994839240201","width":3},"kind":"statistic","nonce":"dfa21f79d85dbfc00d2b4244a4a5323b","previous":"5eeae70c6d8a4bc4254535d5e3a653798a92ae3d8e3d24035db02bacea37bc04","sequence":6,"time":"2026-11-16T06:03:27.694Z"}');
CREATE TABLE lookalikes (position INTEGER PRIMARY KEY, earlier INTEGER NOT NULL);
INSERT INTO "lookalikes" VALUES(30,7);
CREATE TABLE outcomes (
    chunk INTEGER NOT NULL, entry INTEGER NOT NULL, covered BLOB NOT NULL, outcomes BLOB NOT NULL,
    UNIQUE (chunk, entry)
);
INSERT INTO "outcomes" VALUES(0,3,X'7801EDD0010D00000C0220FBA7B581CFF10D22B035183060C0800103060C183060C0800103060C183060C0800103060C183060C0800103BF070EE29402EF',X'39060E06E00501064006D305C2052506E3053606380657061606940619064806EA053306CC056506');
INSERT INTO "outcomes" VALUES(0,5,X'7801EDD0010D000008C0A0DBDCE8E67083086C4D183060C0800103060C183060C0800103060C183060C0800103060C183060C0800103AF070E40ED0082',X'01010000');
INSERT INTO "outcomes" VALUES(0,6,X'7801EDD0410D00000800A16B60FFAE3ECCE10611A8D93060C0800103060C183060C0800103060C183060C0800103060C183060C0800103065E0F1C7EDD010C',X'');
CREATE TABLE records (position INTEGER PRIMARY KEY, id TEXT NOT NULL, label INTEGER NOT NULL, unit TEXT);
INSERT INTO "records" VALUES(0,'C00',0,'user0');
INSERT INTO "records" VALUES(1,'C01',1,'user0');
INSERT INTO "records" VALUES(2,'C02',0,'user0');
INSERT INTO "records" VALUES(3,'C03',0,'user0');
INSERT INTO "records" VALUES(4,'C04',0,'user1');
INSERT INTO "records" VALUES(5,'C05',1,'user1');
INSERT INTO "records" VALUES(6,'C06',0,'user1');
INSERT INTO "records" VALUES(7,'C07',1,'user1');
INSERT INTO "records" VALUES(8,'C08',0,'user2');
INSERT INTO "records" VALUES(9,'C09',1,'user2');
INSERT INTO "records" VALUES(10,'C10',0,'user2');
INSERT INTO "records" VALUES(11,'C11',1,'user2');
INSERT INTO "records" VALUES(12,'C12',0,'user3');
INSERT INTO "records" VALUES(13,'C13',1,'user3');
INSERT INTO "records" VALUES(14,'C14',0,'user3');
INSERT INTO "records" VALUES(15,'C15',1,'user3');
INSERT INTO "records" VALUES(16,'C16',0,'user4');
INSERT INTO "records" VALUES(17,'C17',1,'user4');
INSERT INTO "records" VALUES(18,'C18',0,'user4');
INSERT INTO "records" VALUES(19,'C19',1,'user4');
INSERT INTO "records" VALUES(20,'C20',0,'user5');
INSERT INTO "records" VALUES(21,'C21',1,'user5');
INSERT INTO "records" VALUES(22,'C22',0,'user5');
INSERT INTO "records" VALUES(23,'C23',1,'user5');
INSERT INTO "records" VALUES(24,'C24',0,'user6');
INSERT INTO "records" VALUES(25,'C25',1,'user6');
INSERT INTO "records" VALUES(26,'C26',0,'user6');
INSERT INTO "records" VALUES(27,'C27',1,'user6');
INSERT INTO "records" VALUES(28,'C28',0,'user7');
INSERT INTO "records" VALUES(29,'C29',1,'user7');
INSERT INTO "records" VALUES(30,'c 7',0,'user7');
INSERT INTO "records" VALUES(31,'late',1,'é');
CREATE TABLE statistics (entry INTEGER PRIMARY KEY, vectors BLOB NOT NULL);
INSERT INTO "statistics" VALUES(6,X'C4FFFFFFFFFFFFFF41FFFFFFFFFFFFFFD300000000000000');
CREATE TRIGGER records_stay BEFORE DELETE ON records BEGIN SELECT RAISE(ABORT, 'records are never deleted'); END;
CREATE TRIGGER records_fixed BEFORE UPDATE OF position, id, unit ON records
    BEGIN SELECT RAISE(ABORT, 'only the label of a record may change'); END;
CREATE TRIGGER outcomes_stay BEFORE DELETE ON outcomes BEGIN SELECT RAISE(ABORT, 'releases are never deleted'); END;
CREATE TRIGGER outcomes_fixed BEFORE UPDATE ON outcomes BEGIN SELECT RAISE(ABORT, 'releases never change'); END;
CREATE TRIGGER ledger_stay BEFORE DELETE ON ledger BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER ledger_fixed BEFORE UPDATE ON ledger BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE UNIQUE INDEX records_by_id ON records (id);
CREATE INDEX records_by_unit ON records (unit) WHERE unit IS NOT NULL;
CREATE TRIGGER statistics_stay BEFORE DELETE ON statistics
    BEGIN SELECT RAISE(ABORT, 'releases are never deleted'); END;
CREATE TRIGGER statistics_fixed BEFORE UPDATE ON statistics
    BEGIN SELECT RAISE(ABORT, 'releases never change'); END;
COMMIT;
