-- 100 posts and 400 comments, the same each time, for either schema.
CREATE TEMPORARY TABLE sentences (id INTEGER PRIMARY KEY, text TEXT);
INSERT INTO sentences VALUES
  (0, 'The flock came down from the hill a week earlier than last year.'),
  (1, 'Shearing begins when the nights stay warm, and ends when the back hurts.'),
  (2, 'A good fence is cheaper than a good excuse.'),
  (3, 'We counted twice, and fell asleep once.'),
  (4, 'The new ram is called Tim, because his pedigree would not fit on the sign.'),
  (5, 'Wool prices are low, so we spin the best of it ourselves.'),
  (6, 'Two lambs were born behind the barn while we looked for their mother in front of it.'),
  (7, 'The dog knows the way home, and does not always tell us.'),
  (8, 'It rained on the hay, as it does whenever the neighbour says that it will not.'),
  (9, 'Our cheese needs three months in the cellar and two minutes on the table.'),
  (10, 'Visitors may feed the sheep, but not the other way round.');
WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 100)
INSERT INTO posts (id, title, author, written, body)
SELECT n,
  CASE n % 5 WHEN 0 THEN 'Notes from the pasture' WHEN 1 THEN 'What the shepherd saw'
    WHEN 2 THEN 'Lambs, fences and weather' WHEN 3 THEN 'A week in the barn' ELSE 'Of wool and patience' END
    || ', part ' || n,
  CASE n % 3 WHEN 0 THEN 'Ada' WHEN 1 THEN 'Edgar' ELSE 'Grace' END,
  (2024 + n / 50) || '-0' || (1 + n % 50 / 6) || '-' || (10 + n % 18) || ' 0' || (n % 10) || ':30:00',
  (SELECT text FROM sentences WHERE id = n % 11) || ' ' || (SELECT text FROM sentences WHERE id = n * 3 % 11) || ' '
    || (SELECT text FROM sentences WHERE id = n * 5 % 11) || '

' || (SELECT text FROM sentences WHERE id = (n + 4) % 11) || ' ' || (SELECT text FROM sentences WHERE id = n * 7 % 11)
    || ' ' || (SELECT text FROM sentences WHERE id = (n * 2 + 1) % 11) || '

' || (SELECT text FROM sentences WHERE id = (n + 8) % 11) || ' ' || (SELECT text FROM sentences WHERE id = n * 4 % 11)
FROM numbers;
WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 400)
INSERT INTO comments (id, post, author, written, body)
SELECT n, 1 + n * 7 % 100,
  CASE n % 4 WHEN 0 THEN 'Alan' WHEN 1 THEN 'Barbara' WHEN 2 THEN 'Ken' ELSE 'Radia' END,
  '2026-0' || (1 + n % 400 / 50) || '-' || (10 + n % 18) || ' 1' || (n % 10) || ':15:00',
  (SELECT text FROM sentences WHERE id = n * 3 % 11)
FROM numbers;
DROP TABLE sentences;
