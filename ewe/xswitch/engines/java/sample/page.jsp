<%@ page contentType="text/html; charset=utf-8" %>
<!DOCTYPE html>
<html lang="en">
<title>A page</title>
<p>It is <%= java.time.LocalTime.now().withNano(0) %>. Nine times nine is ${9 * 9}.</p>
</html>
