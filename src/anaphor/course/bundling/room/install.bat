@echo off
rem Windows: Anaphor runs in WSL2, which is Linux; this installs it there.
where wsl >nul 2>nul
if errorlevel 1 (
    echo install: Anaphor runs on Windows in WSL2, which is missing here: wsl --install 1>&2
    exit /b 2
)
wsl.exe --cd "%~dp0." sh install.sh %*
