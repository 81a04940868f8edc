"""The guestbook keeps what was written, in the language of this job."""

import os
import unittest

from guestbook import GREETINGS, Guestbook


class GuestbookTest(unittest.TestCase):
    """With the store that runs beside the job."""

    def test_each_greeting_is_kept_in_its_language(self) -> None:
        language = os.environ["MATRIX_LANGUAGE"]
        guestbook = Guestbook(language)
        before = guestbook.entries()
        guestbook.sign()
        self.assertEqual(guestbook.entries(), [*before, GREETINGS[language]])

    def test_other_languages_have_none(self) -> None:
        # Each job has a store of its own.
        for other in set(GREETINGS) - {os.environ["MATRIX_LANGUAGE"]}:
            self.assertEqual(Guestbook(other).entries(), [])


if __name__ == "__main__":
    unittest.main()
